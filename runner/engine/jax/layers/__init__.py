"""Keras's layers, computed as a mesh and XLA's compiler want them."""

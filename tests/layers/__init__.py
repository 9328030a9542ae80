"""Layers of keras.layers on a mesh with `engine=jax`, compared with stock Keras on one device."""

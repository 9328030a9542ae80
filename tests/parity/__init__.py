"""Keras programs with `compile` and `fit` on one device, beside the runner with the same options on a mesh."""

"""Keras 3 on JAX, placed by jax.sharding."""

"""Writes a run's model for serving, and holds it against the run. Importing this package imports no TensorFlow."""

"""The evaluate command: a run's checkpoint on a split. Importing this package imports no TensorFlow."""

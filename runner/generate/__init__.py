"""The generate command: text from a run's language model. Importing this package imports no TensorFlow."""

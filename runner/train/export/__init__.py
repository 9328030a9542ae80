"""The export command: a run's model for serving, compared with the run. Importing this imports no TensorFlow."""

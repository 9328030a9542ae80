"""Models as users of Keras have them, each run and verified by both engines: `python -m tests.models_of_keras`."""

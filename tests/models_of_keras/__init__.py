"""Models as users of Keras have them, each run and proven by both engines: `python -m tests.models_of_keras`."""

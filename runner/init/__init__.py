"""The init command: writes a project with a model, a dataset, a task, an experiment and a test, ready to run."""

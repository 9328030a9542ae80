"""Writes a project of one's own: a model, a dataset, a task, an experiment and a test, which run at once."""

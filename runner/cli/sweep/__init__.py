"""Multirun: one process a job, one parent run a sweep, and a table that tells the truth."""

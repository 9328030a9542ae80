"""Data sources: one module or package per kind, listed by `runner.data.registry`."""

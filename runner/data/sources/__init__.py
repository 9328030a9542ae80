"""Data sources: one module or package per kind.

`runner.data.registry` lists them.
"""

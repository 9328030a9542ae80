"""The data command: what a dataset holds, in tables and pictures."""

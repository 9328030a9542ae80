"""The data command: tables and pictures of a dataset."""

"""Recorded runs: read, listed, compared, and their checkpoints removed."""

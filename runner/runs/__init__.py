"""Recorded runs and the disk space of their checkpoints: listed, cleaned, kept."""

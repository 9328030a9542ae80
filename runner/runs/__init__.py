"""Recorded runs and what they take of the disk: listed, cleaned, kept."""

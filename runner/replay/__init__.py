"""Replay: computes recorded training steps again, and compares them with the record."""

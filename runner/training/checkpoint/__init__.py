"""Checkpoints: written in the background, checked when read, and the same for every mesh, layout and engine."""

"""Checkpoints: saved in the background, verified when read, independent of mesh, layout and engine."""

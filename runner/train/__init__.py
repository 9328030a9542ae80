"""The training loop, its input, its metrics and its checkpoints."""

"""Time of a training step on virtual CPU devices, for candidates of `runner.advise`."""

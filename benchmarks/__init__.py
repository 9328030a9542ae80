"""Scripts that measure the runner beside its peers."""

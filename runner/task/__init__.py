"""Tasks: losses, metrics and reports of named arrays, the same for every engine."""

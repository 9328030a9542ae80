"""The machine: folders, locks, signals, logs."""

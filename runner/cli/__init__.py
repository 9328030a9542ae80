"""From a command line to a checked config, and from there to a command."""

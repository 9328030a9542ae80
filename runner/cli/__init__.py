"""The command line: parsed, composed to a config, checked, and passed to a command."""

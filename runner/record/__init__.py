"""The record of a command: its folder with the config, and the tracked run."""

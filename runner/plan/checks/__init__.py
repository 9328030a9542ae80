"""Checks that span config groups, and the warnings that a config deserves."""

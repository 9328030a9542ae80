"""Campaigns: programs that try to break the runner, with a line a case and a summary."""

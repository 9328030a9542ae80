"""Recorded runs side by side: the keys in which they differ, their results, and plots of both."""

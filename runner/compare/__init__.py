"""Recorded runs side by side: different keys, results, and plots of both."""

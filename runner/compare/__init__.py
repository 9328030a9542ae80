"""Recorded runs side by side: what they differ in, how they did, and pictures of both."""

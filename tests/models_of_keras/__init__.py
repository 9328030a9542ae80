"""Models as users have them, verified with both engines."""

"""Data: from files, builders and user objects to named arrays."""

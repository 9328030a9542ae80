"""The tracked run: how it is opened, what its page lists, and the status that it ends with."""

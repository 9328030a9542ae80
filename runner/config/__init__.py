"""The typed config of a run, what it is made of and what is refused of it."""

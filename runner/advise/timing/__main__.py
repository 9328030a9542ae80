"""Measures a step of a config: `python -m runner.advise.timing mesh=batch8 ...`, which `runner.advise` starts."""

from runner.cli import entry

if __name__ == "__main__":
    entry.main("runner.advise.timing.command")

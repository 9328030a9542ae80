"""The evaluate command: `python -m runner.evaluate run=<run id>` evaluates a run's checkpoint on a split.

It exits with 0 where that is done, 1 where it failed, 2 where the config was refused.
"""

from runner.cli import entry

if __name__ == "__main__":
    entry.main("runner.evaluate.command")

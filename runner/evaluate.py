"""The evaluate command: `python -m runner.evaluate run=<run id>` evaluates a run's checkpoint on a split."""

from runner.cli import entry

if __name__ == "__main__":
    entry.main("runner.cli.evaluate")

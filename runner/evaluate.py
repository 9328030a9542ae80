"""The evaluate command: `python -m runner.evaluate run=<run id>` evaluates a run's checkpoint on a split.

It exits with 0 if the evaluation is done, 1 if it failed, 2 if the config is invalid.
"""

from runner.cli import entry

if __name__ == "__main__":
    entry.main("runner.cli.evaluate")

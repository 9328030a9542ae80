"""The evaluate command: `python -m runner.evaluate run=<run id>` evaluates a run's checkpoint on a split.

Exit codes: 0 done, 1 failed, 2 invalid config.
"""

from runner.cli import entry

if __name__ == "__main__":
    entry.main("runner.evaluate.command")

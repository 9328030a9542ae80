"""The export command: `python -m runner.export run=<run id>` writes a run's model as a SavedModel.

It exits with 0 where that is done, 1 where it failed or predicts otherwise than the run, 2 where it was refused.
"""

from runner.cli import entry

if __name__ == "__main__":
    entry.main("runner.export.command")

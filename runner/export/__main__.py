"""The export command: `python -m runner.export run=<run id>` writes a run's model as a SavedModel.

Exit codes: 0 done, 1 it failed or predicts otherwise than the run, 2 invalid config.
"""

from runner.cli import entry

if __name__ == "__main__":
    entry.main("runner.export.command")

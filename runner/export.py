"""The export command: `python -m runner.export run=<run id>` writes a run's model as a SavedModel.

It exits with 0 if the export is done, 1 if it failed or its predictions differ from the run's, 2 if the config is
invalid.
"""

from runner.cli import entry

if __name__ == "__main__":
    entry.main("runner.cli.export")

"""The export command: `python -m runner.export run=<run id>` writes a run's model as a SavedModel."""

from runner.cli import entry

if __name__ == "__main__":
    entry.main("runner.cli.export")

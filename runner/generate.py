"""The generate command: `python -m runner.generate run=<run id> prompt=<text>` continues a text with a run's model."""

from runner.cli import entry

if __name__ == "__main__":
    entry.main("runner.cli.generate")

"""The bisect command: `python -m runner.bisect run=<run id> against=<run id>`."""

from runner.cli import entry

if __name__ == "__main__":
    entry.main_without_config("runner.bisect.command")

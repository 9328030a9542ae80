"""The runs command: `python -m runner.runs clean older=30d`."""

from runner.cli import entry

if __name__ == "__main__":
    entry.main_without_config("runner.cli.runs")

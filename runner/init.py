"""The init command: `python -m runner.init my_project` writes a folder that runs at once."""

from runner.cli import entry

if __name__ == "__main__":
    entry.main_without_config("runner.cli.init")

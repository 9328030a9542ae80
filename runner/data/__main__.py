"""The data command: `python -m runner.data dataset=cifar10`."""

from runner.cli import entry

if __name__ == "__main__":
    entry.main("runner.data.command")

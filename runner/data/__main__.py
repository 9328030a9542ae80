"""The data command, implemented in runner/cli/data.py: `python -m runner.data dataset=cifar10`."""

from importlib import import_module

if __name__ == "__main__":
    # By name, because `runner.data` is below the command line in the order of imports.
    import_module("runner.cli.entry").main("runner.cli.data")

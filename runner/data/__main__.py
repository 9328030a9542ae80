"""The data command: `python -m runner.data dataset=cifar10`; its code is in runner/look."""

from importlib import import_module

if __name__ == "__main__":
    # By name: this folder is below the command line in the order of imports.
    import_module("runner.cli.entry").main("runner.look.command")

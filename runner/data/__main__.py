"""The data command: `python -m runner.data dataset=cifar10`; it lies in runner/look."""

from importlib import import_module

if __name__ == "__main__":
    # By name: the folder of a library does not depend on the command line.
    import_module("runner.cli.entry").main("runner.look.command")

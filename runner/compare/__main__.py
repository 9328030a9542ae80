"""The compare command: `python -m runner.compare --sweep latest`."""

from importlib import import_module

if __name__ == "__main__":
    # By name: sweeps import this folder and the command line imports sweeps, so an import would be a cycle of folders.
    import_module("runner.cli.entry").main_without_config("runner.compare.command")

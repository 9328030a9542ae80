"""Stores files of records that a run could not store: `python -m runner.tracking.replay FILE...`."""

from importlib import import_module

if __name__ == "__main__":
    # Imported by name, because the folder of a library must not depend on the command line (tests/test_house.py).
    import_module("runner.cli.entry").main_without_config("runner.tracking.replay")

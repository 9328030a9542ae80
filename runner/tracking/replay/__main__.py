"""Stores files of records that a run could not store: `python -m runner.tracking.replay FILE...`."""

import sys
from importlib import import_module

from runner.tracking import replay

if __name__ == "__main__":
    # Imported by name, because the folder of a library must not depend on the command line (tests/test_house.py).
    import_module("runner.cli.entry").start(lambda: replay.main(sys.argv[1:]))

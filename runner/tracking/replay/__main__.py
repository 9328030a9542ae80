"""Stores files of records that a run could not store: `python -m runner.tracking.replay FILE...`."""

import sys
from importlib import import_module

from runner.tracking import replay

if __name__ == "__main__":
    # By name: this folder is below the command line in the order of imports.
    import_module("runner.cli.entry").start(lambda: replay.main(sys.argv[1:]))

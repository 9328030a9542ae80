"""Stores files of records that a run could not store: `python -m runner.tracking.replay FILE...`."""

import sys

from runner.cli import entry
from runner.tracking import replay

if __name__ == "__main__":
    entry.start(lambda: replay.main(sys.argv[1:]))

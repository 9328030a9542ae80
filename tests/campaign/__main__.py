"""Runs campaigns: `python -m tests.campaign [kills|fuzz|corruption|storage|server] [--cases N --seed S]`.

All of them where none is named. Exit code 0 where every case held, 1 where one did not.
"""

from __future__ import annotations

import argparse
import importlib
import sys
import tempfile
from pathlib import Path
from typing import cast

from tests.campaign.base import NAMES, Campaign, tell


def main() -> int:
    """Runs the campaigns that the command line names."""
    parser = argparse.ArgumentParser(prog="python -m tests.campaign", description=__doc__)
    parser.add_argument("name", nargs="?", choices=NAMES, help="one campaign; all of them where it is left out")
    parser.add_argument("--cases", type=int, help="how many cases; each campaign has a number of its own")
    parser.add_argument("--seed", type=int, default=0, help="decides what the cases are")
    options = parser.parse_args()
    broken = 0
    for name in (options.name,) if options.name else NAMES:
        campaign = cast(Campaign, importlib.import_module(f"tests.campaign.{name}"))
        with tempfile.TemporaryDirectory(prefix=f"campaign-{name}-") as folder:
            cases = campaign.run(options.cases or campaign.CASES, options.seed, Path(folder))
            broken += tell(name, cases, sys.stdout)
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())

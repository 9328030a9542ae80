"""Runs campaigns: `python -m tests.campaign [NAME] [--cases N --seed S]`; the names are in `tests.campaign.base`.

All of them where none is named. Exit code 0 where every case held, 1 where one did not.
"""

from __future__ import annotations

import argparse
import importlib
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import cast

from tests.campaign import mutations
from tests.campaign.base import NAMES, Campaign, tell


def main() -> int:
    """Runs the campaigns that the command line names."""
    parser = argparse.ArgumentParser(prog="python -m tests.campaign", description=__doc__)
    parser.add_argument("name", nargs="?", choices=NAMES, help="one campaign; all of them where it is left out")
    parser.add_argument(
        "--cases",
        "--sample",
        type=int,
        help="how many cases; each campaign has a number of its own; mutations: a scene",
    )
    parser.add_argument("--seed", type=int, default=0, help="decides what the cases are")
    for key in asdict(mutations.Options()):
        parser.add_argument(f"--{key}", default="", help=f"mutations: the only {key}, else all")
    chosen = parser.parse_args()
    options = mutations.Options(**{key: getattr(chosen, key) for key in asdict(mutations.Options())})
    broken = 0
    for name in (chosen.name,) if chosen.name else NAMES:
        with tempfile.TemporaryDirectory(prefix=f"campaign-{name}-") as folder:
            if name == "mutations":
                broken += tell(name, mutations.run(chosen.cases or 0, chosen.seed, Path(folder), options), sys.stdout)
                mutations.report(sys.stdout)
                continue
            campaign = cast(Campaign, importlib.import_module(f"tests.campaign.{name}"))
            cases = campaign.run(chosen.cases or campaign.CASES, chosen.seed, Path(folder))
            broken += tell(name, cases, sys.stdout)
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())

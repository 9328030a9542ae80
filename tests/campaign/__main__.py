"""Runs campaigns: `python -m tests.campaign [fuzz|mutations] [--cases N --seed S]`; both where none is named.

Exit code 0 where every case held, 1 where one did not.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path

from tests.campaign import fuzz, mutations
from tests.campaign.base import tell


def main() -> int:
    """Runs the campaigns that the command line names."""
    parser = argparse.ArgumentParser(prog="python -m tests.campaign", description=__doc__)
    parser.add_argument("name", nargs="?", choices=("fuzz", "mutations"), help="one campaign; else both")
    parser.add_argument(
        "--cases", "--sample", type=int, default=0, help="how many cases; mutations: a scene; else all"
    )
    parser.add_argument("--seed", type=int, default=0, help="decides what the cases are")
    for key in asdict(mutations.Options()):
        parser.add_argument(f"--{key}", default="", help=f"mutations: the only {key}, else all")
    chosen = parser.parse_args()
    broken = 0
    with tempfile.TemporaryDirectory(prefix="campaign-") as folder:
        if chosen.name != "mutations":
            cases = fuzz.run(chosen.cases or fuzz.CASES, chosen.seed, Path(folder, "fuzz"))
            broken += tell("fuzz", cases, sys.stdout)
        if chosen.name != "fuzz":
            options = mutations.Options(**{key: getattr(chosen, key) for key in asdict(mutations.Options())})
            found: list[mutations.Result] = []
            cases = mutations.cases(mutations.results(chosen.cases, chosen.seed, Path(folder), options), found)
            broken += tell("mutations", cases, sys.stdout)
            mutations.report(found, sys.stdout)
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())

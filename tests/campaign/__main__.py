"""Runs campaigns: `python -m tests.campaign [fuzz|mutations] [--cases N --seed S]`; both where none is named.

Exit code 0 where every case held, 1 where one did not.
"""

import argparse
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tests.campaign import fuzz, mutations
from tests.campaign.base import Case, tell

_ONLY = ("engine", "network", "setting", "mutation")


def main() -> int:
    """Runs the campaigns that the command line names."""
    parser = argparse.ArgumentParser(prog="python -m tests.campaign", description=__doc__)
    parser.add_argument("name", nargs="?", choices=("fuzz", "mutations"), help="one campaign; else both")
    parser.add_argument(
        "--cases", "--sample", type=int, default=0, help="how many cases; mutations: a scene; else all"
    )
    parser.add_argument("--seed", type=int, default=0, help="decides what the cases are")
    for key in _ONLY:
        parser.add_argument(f"--{key}", default="", help=f"mutations: the only {key}, else all")
    chosen = parser.parse_args()
    broken = 0
    with tempfile.TemporaryDirectory(prefix="campaign-") as folder:
        if chosen.name != "mutations":
            cases = fuzz.run(chosen.cases or fuzz.CASES, chosen.seed, Path(folder, "fuzz"))
            broken += tell("fuzz", cases, sys.stdout)
        if chosen.name != "fuzz":
            only = {key: getattr(chosen, key) for key in _ONLY}
            found: list[mutations.Result] = []

            def tried() -> Iterator[Case]:
                for result in mutations.results(chosen.cases, chosen.seed, Path(folder), **only):
                    found.append(result)
                    yield result.case()

            broken += tell("mutations", tried(), sys.stdout)
            mutations.report(found, sys.stdout)
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())

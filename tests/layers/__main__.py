"""The table of every layer: `python -m tests.layers [--write] [words]`.

Prints what is not equal to stock Keras as it comes, and the counts; exits with 1 where anything is wrong. With words,
only the cases whose names hold every word. `--write` writes docs/layers.md, of all cases; `--json FILE` keeps what was
found between commands.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import Counter
from dataclasses import asdict
from pathlib import Path

from tests.layers import page
from tests.layers.case import Case
from tests.layers.drive import run
from tests.layers.setup import MESHES
from tests.layers.table import by_name
from tests.layers.worker import EQUAL, WRONG, Outcome


def _kept(file: Path | None) -> list[Outcome]:
    """Returns the outcomes that a file holds, of cases that are still in the table; what was wrong is run again."""
    held = json.loads(file.read_text()) if file is not None and file.exists() else []
    found = [Outcome(**each) for each in held]
    return [each for each in found if each.name in by_name() and each.kind != WRONG]


def main() -> int:
    """Runs the cases that the command line names."""
    parser = argparse.ArgumentParser(prog="python -m tests.layers")
    parser.add_argument("words", nargs="*")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--write", action="store_true", help="writes docs/layers.md")
    parser.add_argument("--mesh", choices=MESHES, action="append")
    parser.add_argument("--json", type=Path, help="keeps every outcome; what it holds is not run again")
    chosen = parser.parse_args()
    begun = time.monotonic()
    found = _kept(chosen.json)
    done = {(outcome.name, outcome.mesh) for outcome in found}

    def wanted(case: Case, mesh: str) -> bool:
        named = all(word in case.name for word in chosen.words) and mesh in (chosen.mesh or MESHES)
        return named and (case.name, mesh) not in done

    for outcome in run(wanted, chosen.workers):
        found.append(outcome)
        if outcome.kind != EQUAL:
            print(f"{outcome.kind} {outcome.mesh} {outcome.name}: {outcome.told}", flush=True)
        if chosen.json is not None:
            chosen.json.write_text(json.dumps([asdict(each) for each in found]))
    counts = Counter(outcome.kind for outcome in found)
    print(", ".join(f"{count} {kind}" for kind, count in counts.most_common()))
    print(f"{time.monotonic() - begun:.0f} s")
    if chosen.write:
        page.PAGE.write_text(page.rendered(found))
    return int(any(outcome.kind == WRONG for outcome in found))


if __name__ == "__main__":
    sys.exit(main())

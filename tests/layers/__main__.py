"""The table of every layer: `python -m tests.layers [--engine jax] [--write] [words]`.

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
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from tests.layers import page
from tests.layers.case import ENGINES, Case
from tests.layers.drive import run
from tests.layers.setup import MESHES
from tests.layers.table import by_name
from tests.layers.worker import EQUAL, WRONG, Outcome


def _kept(file: Path | None, engines: Sequence[str]) -> dict[str, list[Outcome]]:
    """Returns the outcomes that a file holds, of cases that are still in the table; what was wrong is run again."""
    held = json.loads(file.read_text()) if file is not None and file.exists() else {}
    found = {engine: [Outcome(**each) for each in held.get(engine, [])] for engine in {*engines, *held}}
    return {
        engine: [each for each in outcomes if each.name in by_name(engine) and each.kind != WRONG]
        for engine, outcomes in found.items()
    }


def main() -> int:
    """Runs the cases that the command line names."""
    parser = argparse.ArgumentParser(prog="python -m tests.layers")
    parser.add_argument("words", nargs="*")
    parser.add_argument("--engine", choices=ENGINES, action="append")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--write", action="store_true", help="writes docs/layers.md")
    parser.add_argument("--mesh", choices=MESHES, action="append")
    parser.add_argument("--json", type=Path, help="keeps every outcome; what it holds is not run again")
    chosen = parser.parse_args()
    engines, begun = chosen.engine or list(ENGINES), time.monotonic()
    found = _kept(chosen.json, engines)
    done = {(engine, outcome.name, outcome.mesh) for engine, outcomes in found.items() for outcome in outcomes}

    def wanted(engine: str, case: Case, mesh: str) -> bool:
        named = all(word in case.name for word in chosen.words) and mesh in (chosen.mesh or MESHES)
        return named and (engine, case.name, mesh) not in done

    for engine, outcome in run(engines, wanted, chosen.workers):
        found[engine].append(outcome)
        if outcome.kind != EQUAL:
            print(f"{outcome.kind} {engine} {outcome.mesh} {outcome.name}: {outcome.told}", flush=True)
        if chosen.json is not None:
            chosen.json.write_text(json.dumps({key: [asdict(each) for each in held] for key, held in found.items()}))
    for engine, outcomes in found.items():
        counts = Counter(outcome.kind for outcome in outcomes)
        print(f"{engine}: {', '.join(f'{count} {kind}' for kind, count in counts.most_common())}")
    print(f"{time.monotonic() - begun:.0f} s")
    if chosen.write:
        page.PAGE.write_text(page.rendered(found))
    return int(any(outcome.kind == WRONG for outcomes in found.values() for outcome in outcomes))


if __name__ == "__main__":
    sys.exit(main())

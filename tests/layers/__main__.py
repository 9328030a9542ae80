"""The table of every layer: `python -m tests.layers [--engine jax] [--write] [words]`.

Prints what is not equal to stock Keras as it comes, and the counts; exits with 1 where anything is wrong. With words,
only the cases whose names hold every word; without, `--write` writes docs/layers.md.
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
from tests.layers.case import ENGINES
from tests.layers.drive import run
from tests.layers.worker import EQUAL, WRONG, Outcome


def main() -> int:
    """Runs the cases that the command line names."""
    parser = argparse.ArgumentParser(prog="python -m tests.layers")
    parser.add_argument("words", nargs="*")
    parser.add_argument("--engine", choices=ENGINES, action="append")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--write", action="store_true", help="writes docs/layers.md")
    parser.add_argument("--json", type=Path, help="writes every outcome")
    chosen = parser.parse_args()
    engines, begun = chosen.engine or list(ENGINES), time.monotonic()
    found: dict[str, list[Outcome]] = {engine: [] for engine in engines}
    for engine, outcome in run(engines, lambda case: all(w in case.name for w in chosen.words), chosen.workers):
        found[engine].append(outcome)
        if outcome.kind != EQUAL:
            print(f"{outcome.kind} {engine} {outcome.mesh} {outcome.name}: {outcome.told}", flush=True)
        if chosen.json is not None:
            held = {engine: [asdict(each) for each in outcomes] for engine, outcomes in found.items()}
            chosen.json.write_text(json.dumps(held))
    for engine, outcomes in found.items():
        counts = Counter(outcome.kind for outcome in outcomes)
        print(f"{engine}: {', '.join(f'{count} {kind}' for kind, count in counts.most_common())}")
    print(f"{time.monotonic() - begun:.0f} s")
    if chosen.write and not chosen.words:
        page.PAGE.write_text(page.rendered(found))
    return int(any(outcome.kind == WRONG for outcomes in found.values() for outcome in outcomes))


if __name__ == "__main__":
    sys.exit(main())

"""How far the figures of plans have been from measured ones, as `python -m benchmarks.plans` has written it."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

# Errors by figure, such as "memory, arithmetic" and "step time".
FILE = Path(__file__).with_name("known_errors.json")
MEMORY = "memory"
STEP_TIME = "step time"


@dataclass(frozen=True)
class Errors:
    """Relative errors of one figure: the median, and what 90% of them are at most.

    `of` says what was compared, such as `published runs`; `cards` how many of the runs are of each option of
    `hardware`.
    """

    runs: int
    median: float
    p90: float
    of: str
    cards: Mapping[str, int] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"median {self.median:.0%}, p90 {self.p90:.0%} over {self.runs} {self.of}"

    def on(self, card: str) -> str:
        """Returns the errors with the number of runs on a card."""
        return f"{self}, {self.cards.get(card) or 'none'} on {card}"


@functools.cache
def _all() -> dict[str, Errors]:
    content = json.loads(FILE.read_text())
    return {name: Errors(**values) for name, values in content.items()}


def line(depth: str, card: str) -> str:
    """Returns the errors of a plan's memory and step time, in a line."""
    parts = []
    # A step time is arithmetic at any depth.
    for figure, key in ((MEMORY, f"{MEMORY}, {depth}"), (STEP_TIME, STEP_TIME)):
        known = _all().get(key)
        parts.append(f"{figure}: {known.on(card) if known else 'not compared with any run'}")
    return f"errors of such figures so far ({depth}): {'; '.join(parts)}"

"""How far the figures of plans have been from measured ones, as `python -m benchmarks.plans` has written it."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

# Errors by figure, such as "memory, arithmetic" and "step time".
FILE = Path(__file__).with_name("known_errors.json")


@dataclass(frozen=True)
class Errors:
    """Relative errors of one figure: the median, and what 90% of them are at most.

    `of` says what was compared, such as `published runs`; `cards` and `models` how many of the runs are of each option
    of `hardware` and `model`.
    """

    runs: int
    median: float
    p90: float
    of: str
    cards: Mapping[str, int] = field(default_factory=dict)
    models: Mapping[str, int] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"median {self.median:.0%}, p90 {self.p90:.0%} over {self.runs} {self.of}"

    def on(self, card: str, model: str) -> str:
        """Returns the errors with the number of runs on a card, and of those with an option of `model`."""
        if not self.runs:
            return "not compared with any run"
        return f"{self}, {self.cards.get(card) or 'none'} on {card}, {self.models.get(model) or 'none'} with {model}"


# Those of a figure that was compared with no run.
_UNKNOWN = Errors(0, 0.0, 0.0, "")


@functools.cache
def _all() -> dict[str, Errors]:
    content = json.loads(FILE.read_text())
    return {name: Errors(**values) for name, values in content.items()}


def memory_p90(depth: str) -> float:
    """Returns what 90% of the errors of a plan's memory are at most; 0: it was compared with no run."""
    return _all().get(f"memory, {depth}", _UNKNOWN).p90


def line(depth: str, card: str, model: str) -> str:
    """Returns the errors of a plan's memory and step time, in a line."""
    parts = []
    # A step time is arithmetic at any depth.
    for figure, key in (("memory", f"memory, {depth}"), ("step time", "step time")):
        known = _all().get(key, _UNKNOWN)
        parts.append(f"{figure}: {known.on(card, model)}")
    return f"errors of such figures so far ({depth}): {'; '.join(parts)}"

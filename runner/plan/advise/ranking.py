"""Ranking of planned candidates, and the front of memory against time. Pure functions."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from runner.plan import forecast
from runner.plan.advise.candidates import Candidate
from runner.plan.base import FITS, MAY_FIT, TOO_LARGE, Forecast

# The best first.
_VERDICTS = (FITS, MAY_FIT, TOO_LARGE)


@dataclass(frozen=True)
class Planned:
    """What a candidate needs of one device, as its plan says.

    Attributes:
      step_seconds: of one step: fastest and slowest.
      parts: (what, seconds) that the step time consists of.
      memory: (kind, bytes) of one device's memory.
      state_fits: whether the state alone fits: weights, optimizer state and sums of gradients.
      setting: what its command has to set so that JAX reserves the memory; empty: nothing.
    """

    candidate: Candidate
    verdict: str
    peak_bytes: int
    step_seconds: tuple[float, float]
    bound: str
    parts: tuple[tuple[str, float], ...]
    memory: tuple[tuple[str, int], ...]
    state_fits: bool = True
    setting: str = ""

    @property
    def seconds(self) -> float:
        """Returns the middle of the range of step times, on a scale of ratios."""
        fastest, slowest = self.step_seconds
        return math.sqrt(fastest * slowest)


def of_forecast(candidate: Candidate, verdict: Forecast) -> Planned:
    """Returns a candidate with what a plan forecasts of it."""
    return Planned(
        candidate=candidate,
        verdict=verdict.verdict,
        peak_bytes=verdict.peak_bytes,
        step_seconds=verdict.step_seconds,
        bound=verdict.bound,
        parts=tuple(forecast.times(verdict.compute_seconds, verdict.memory_seconds, verdict.link_seconds).items()),
        memory=tuple((part.kind, part.bytes) for part in verdict.memory),
        state_fits=verdict.state_fits,
        setting=verdict.setting,
    )


@dataclass(frozen=True)
class Dropped:
    """A candidate that was not planned, the reason, such as `lint`, and the same in words."""

    candidate: Candidate
    reason: str
    detail: str


def ranked(planned: Iterable[Planned]) -> list[Planned]:
    """Returns candidates, the best first.

    Those that fit come first. Of equal times, the candidate
    that saves memory in fewer ways comes first, because plans price recomputation of products only; then the one with
    fewer microbatches, because plans have no latency of the collectives that each repeats; then the one with the
    smaller memory, then the one with fewer mesh axes. Of those that do not fit, the smallest comes first.
    """

    def rank(entry: Planned) -> tuple[int, int, float, int, int, float, int]:
        # Times that agree in three digits are equal: no plan is more exact.
        memory = float(f"{entry.peak_bytes:.2g}")
        seconds = float(f"{entry.seconds:.3g}")
        candidate = entry.candidate
        verdict = _VERDICTS.index(entry.verdict)
        excess = entry.peak_bytes if entry.verdict == TOO_LARGE else 0
        return (verdict, excess, seconds, candidate.savings, candidate.accumulate, memory, len(candidate.axes))

    return sorted(planned, key=rank)


def front(planned: Sequence[Planned]) -> list[Planned]:
    """Returns the candidates that no other one beats in both memory and time, the smallest memory first."""
    best: list[Planned] = []
    for entry in sorted(planned, key=lambda entry: (entry.peak_bytes, entry.seconds)):
        # All entries before this one need no more memory, and the last of the front is the fastest of them.
        if not best or entry.seconds < best[-1].seconds:
            best.append(entry)
    return best


def reasons(dropped: Iterable[Dropped]) -> list[tuple[str, int, str]]:
    """Returns (reason, number of candidates, the first one's detail), the most frequent first."""
    counts: Counter[str] = Counter()
    examples: dict[str, str] = {}
    for entry in dropped:
        counts[entry.reason] += 1
        examples.setdefault(entry.reason, entry.detail)
    return [(reason, count, examples[reason]) for reason, count in counts.most_common()]

"""Step times of published runs that plans predict with an efficiency from other sources, and those of a constant."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from benchmarks.plan_rows import Result

# Cards that a card's efficiency is taken from if the other sources have none of its own, the nearest first.
_RELATED = {
    "h200": ("h100",),
    "b200": ("h100",),
    "a100_40g": ("a100_80g",),
    "a100_80g": ("a100_40g",),
    "v5e": ("v6e", "v5p", "v4"),
    "v5p": ("v4", "v5e", "v6e"),
    "v6e": ("v5e", "v5p", "v4"),
    "v4": ("v5p", "v5e", "v6e"),
}
# Rows by which a card's own efficiency is drawn to that of all cards.
_SHRINKAGE = 1.0


def efficiency(result: Result) -> float | None:
    """Returns the share of the peak with which a plan's step takes as long as the published one.

    Null: no share does, as for a step that the links bound.
    """
    assert result.published_seconds is not None
    left = result.published_seconds - result.memory_seconds
    if left <= 0 or result.links_seconds >= result.published_seconds:
        return None
    return result.products_seconds / left


def fitted(rows: Sequence[Result], card: str) -> float | None:
    """Returns the efficiency of a card: the median of its rows, drawn to that of related cards and of all rows."""
    by_card: dict[str, list[float]] = {}
    for row in rows:
        share = efficiency(row)
        if share is not None:
            by_card.setdefault(row.card, []).append(share)
    everything = [share for shares in by_card.values() for share in shares]
    if not everything:
        return None
    prior = statistics.median(everything)
    for related in _RELATED.get(card, ()):
        if related in by_card:
            prior = statistics.median(by_card[related])
            break
    own = by_card.get(card, [])
    if not own:
        return prior
    weight = len(own) / (len(own) + _SHRINKAGE)
    return math.exp(weight * math.log(statistics.median(own)) + (1 - weight) * math.log(prior))


def judge_times(rows: Sequence[Result]) -> None:
    """Writes the predicted step times into the rows: of efficiencies, and of a constant, from other sources alone."""
    timed = [row for row in rows if row.published_seconds is not None]
    for source in {row.source for row in timed}:
        others = [row for row in timed if row.source != source]
        for row in timed:
            if row.source != source:
                continue
            share = fitted(others, row.card)
            if share is not None:
                row.predicted_seconds = row.seconds(share)
            constant = _constant(others, row.card)
            if constant is not None:
                row.constant_seconds = row.model_seconds / constant


def _constant(rows: Sequence[Result], card: str) -> float | None:
    """Returns the median MFU of a card's rows, or of its related cards', or of all."""
    for cards in ((card,), _RELATED.get(card, ()), tuple({row.card for row in rows})):
        shares = [row.model_seconds / (row.published_seconds or math.nan) for row in rows if row.card in cards]
        if shares:
            return statistics.median(shares)
    return None

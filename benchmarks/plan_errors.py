"""Errors of plans compared with published runs, and their tables."""

from __future__ import annotations

import csv
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

import numpy as np

from benchmarks.plan_fit import fitted
from benchmarks.plan_rows import Result

# Half of the width of the step time's range, as a factor: 80% of the published runs lie inside.
_INSIDE = 0.8
# Pairs of runs whose times differ by less are not ordered: published tables do not repeat runs.
DIFFERENT = 1.2
# Card, model, predicted and true figure.
Pair = tuple[str, str, float, float]


@dataclass(frozen=True)
class Errors:
    """Relative errors of one figure: their number, median, 90th percentile, and the worst."""

    runs: int
    median: float
    p90: float
    worst: float

    @classmethod
    def of(cls, pairs: Iterable[tuple[float, float]]) -> Errors | None:
        """Returns the errors of (predicted, true) pairs; None if there are none."""
        errors = sorted(abs(predicted / true - 1) for predicted, true in pairs)
        if not errors:
            return None
        return cls(len(errors), float(np.quantile(errors, 0.5)), float(np.quantile(errors, 0.9)), errors[-1])

    def __str__(self) -> str:
        return f"median {self.median:.0%}, p90 {self.p90:.0%}, worst {self.worst:.0%} over {self.runs} runs"


def time_errors(rows: Iterable[Result], *, constant: bool = False) -> Errors | None:
    """Returns the errors of predicted step times."""
    pairs = []
    for row in rows:
        predicted = row.constant_seconds if constant else row.predicted_seconds
        if predicted is not None and row.published_seconds is not None:
            pairs.append((predicted, row.published_seconds))
    return Errors.of(pairs)


def has_ring_attention(row: Result) -> bool:
    """Returns whether a run shards its tokens: its framework then has ring attention, which keeps no scores.

    This engine computes such attention by separate operations, so its plan has them.
    """
    return "layout=sequence" in row.overrides


def memory_errors(rows: Iterable[Result], *, alike: bool | None = None, own: bool = True) -> Errors | None:
    """Returns the errors of predicted memory.

    Args:
      rows: of which those with a published memory count.
      alike: only those whose activation checkpointing is the plan's, or only the others; None: all.
      own: as planned; else with the known arrays that the run's framework holds beyond.
    """
    pairs = []
    for row in rows:
        if has_ring_attention(row):
            continue
        if row.published_gib and not row.problem and alike in (None, row.is_alike):
            pairs.append((row.predicted_gib + (0.0 if own else row.framework_gib), row.published_gib))
    return Errors.of(pairs)


def differences(rows: Sequence[Result]) -> list[tuple[Result, Result, float, float]]:
    """Returns pairs of runs of one model whose config differs in devices or batch alone: predicted, published GiB."""
    found = []
    for first, second in combinations([row for row in rows if row.published_gib and not row.problem], 2):
        changed = set(first.overrides) ^ set(second.overrides)
        keys = {override.partition("=")[0] for override in changed}
        is_one_model = first.model == second.model and bool(keys) and keys <= {"mesh.axes", "dataset.batch_size"}
        if is_one_model and first.published_gib != second.published_gib:
            predicted = second.predicted_gib + second.framework_gib - first.predicted_gib - first.framework_gib
            stated = (second.published_gib or 0.0) - (first.published_gib or 0.0)
            found.append((first, second, predicted, stated))
    return found


def order(rows: Sequence[Result]) -> tuple[int, int]:
    """Returns how many pairs on one card differ by 20% in time per token, and how many the plan orders right.

    A larger batch alone makes no slower run.
    """
    right = 0
    pairs = 0
    timed = [row for row in rows if row.predicted_seconds and row.published_seconds]
    for first, second in combinations(timed, 2):
        if first.card != second.card:
            continue
        true = _ratio(first, second, lambda row: row.published_seconds)
        predicted = _ratio(first, second, lambda row: row.predicted_seconds)
        if max(true, 1 / true) >= DIFFERENT:
            pairs += 1
            right += (true > 1) == (predicted > 1)
    return pairs, right


def _ratio(first: Result, second: Result, seconds: Callable[[Result], float | None]) -> float:
    """Returns the ratio of two runs' times per token."""
    return (seconds(first) or math.nan) / first.tokens / ((seconds(second) or math.nan) / second.tokens)


def gates(rows: Sequence[Result]) -> tuple[list[Result], list[Result]]:
    """Returns runs that ran and are rejected, and runs that ran out of memory and are accepted."""
    planned_rows = [row for row in rows if not row.problem]
    rejected = [row for row in planned_rows if not row.ran_out and row.verdict == "does not fit"]
    accepted = [row for row in planned_rows if row.ran_out and row.verdict == "fits"]
    return rejected, accepted


def half_width(rows: Sequence[Result]) -> float:
    """Returns the factor around predicted times inside of which 80% of the published ones lie."""
    ratios = []
    for row in rows:
        if row.predicted_seconds and row.published_seconds:
            ratio = row.predicted_seconds / row.published_seconds
            ratios.append(max(ratio, 1 / ratio))
    return float(np.quantile(ratios, _INSIDE)) if ratios else math.nan


def table(rows: Sequence[Result]) -> list[list[str]]:
    """Returns a line per run: predicted and published figures side by side."""
    lines = [
        [
            "run",
            "card",
            "GiB predicted",
            "published",
            "verdict",
            "tokens/s",
            "published",
            "step",
            "published",
            "MFU",
            "published",
        ]
    ]
    for row in rows:
        if row.problem:
            continue
        line = [f"{row.row} {row.model[:24]}", row.card, f"{row.predicted_gib:.1f}", _text(row.published_gib, ".1f")]
        line.append(row.verdict)
        for predicted, true in (
            (_per(row.tokens, row.predicted_seconds), _per(row.tokens, row.published_seconds)),
            (row.predicted_seconds, row.published_seconds),
            (_per(row.model_seconds, row.predicted_seconds), _per(row.model_seconds, row.published_seconds)),
        ):
            form = ".0f" if predicted and predicted > 100 else ".3g"
            line += [_text(predicted, form), _text(true, form)]
        lines.append(line)
    return lines


def _per(amount: float, seconds: float | None) -> float | None:
    return amount / seconds if seconds else None


def _text(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)


def summary(rows: Sequence[Result]) -> list[tuple[str, str]]:
    """Returns figure and value of everything that the runs add up to."""
    lines = []
    have = [row for row in rows if not row.problem]
    lines.append(("published runs, planned", f"{len(rows)}, {len(have)}"))
    for alike, words in (
        (True, "activation checkpointing of the run"),
        (False, "activation checkpointing near the run's"),
    ):
        lines.append((f"memory, {words}", str(memory_errors(have, alike=alike) or "none")))
        with_loss = memory_errors(have, alike=alike, own=False)
        lines.append((f"memory, {words}, and its framework's arrays", str(with_loss or "none")))
    rings = sum(has_ring_attention(row) and bool(row.published_gib) for row in have)
    lines.append(("memory, not compared: ring attention, where plans count scores", f"{rings} runs"))
    for first, second, predicted, true in differences(have):
        lines.append(
            (f"memory, run {second.row} less run {first.row}", f"{predicted:+.2f} GiB, published {true:+.2f}")
        )
    lines.append(("step time", str(time_errors(have) or "none")))
    lines.append(("step time by a constant MFU per card", str(time_errors(have, constant=True) or "none")))
    for source in sorted({row.source for row in have}):
        own = [row for row in have if row.source == source]
        errors = time_errors(own)
        if errors:
            lines.append((f"step time, {source}", f"{errors}; constant: {time_errors(own, constant=True)}"))
    lines.append(("factor around the step time that has 80% of the runs inside", f"{half_width(have):.2f}"))
    inside = [
        row.range_seconds[0] <= row.published_seconds <= row.range_seconds[1]
        for row in have
        if row.published_seconds is not None
    ]
    lines.append(("step times inside the printed range", f"{sum(inside)} of {len(inside)}"))
    pairs, right = order(have)
    lines.append(("pairs on one card that differ by 20%, in the right order", f"{right} of {pairs}"))
    rejected, accepted = gates(have)
    lines.append(("runs that ran and are rejected", ", ".join(str(row.row) for row in rejected) or "none"))
    lines.append(
        ("runs that ran out of memory and are accepted", ", ".join(str(row.row) for row in accepted) or "none")
    )
    verdicts = [row.verdict for row in have if not row.ran_out]
    lines.append(
        ("verdicts of runs that ran", f"{verdicts.count('fits')} fits, {verdicts.count('may not fit')} may not fit")
    )
    timed = [row for row in have if row.published_seconds]
    factor = half_width(have)
    for card in sorted({row.card for row in have}):
        share = fitted(timed, card)
        if share:
            value = f"{share:.3f}, range {share / factor:.2f} to {share * factor:.2f}"
            lines.append((f"efficiency of {card}, all sources", value))
    compiled = [row for row in have if row.compiled_gib]
    errors = Errors.of((row.predicted_gib, row.compiled_gib or math.nan) for row in compiled)
    if errors:
        lines.append(("memory, arithmetic compared with the compiler", str(errors)))
    return lines


# Memory by arithmetic beside what a compiler counted, or a run took, as the pages have it.
_KNOWN_PAIRS = Path(__file__).with_name("known_pairs.csv")


# Option of `model` that published runs and those on the H200 are planned with.
_MODEL = "gpt"


def known_memory() -> list[Pair]:
    """Returns the card, the model, the memory by arithmetic and the true one of each pair that a page has."""
    pairs = []
    with _KNOWN_PAIRS.open(newline="") as file:
        for row in csv.DictReader(file):
            pairs.append((row["card"], row["model"], float(row["arithmetic_gib"]), float(row["true_gib"])))
    return pairs


def recorded(rows: Sequence[Result], more: Mapping[str, Errors]) -> dict[str, dict[str, object]]:
    """Returns the content of `runner/plan/known_errors.json`: the errors that plans print."""
    compiled = [
        (row.card, _MODEL, row.predicted_gib, row.compiled_gib) for row in rows if row.compiled_gib is not None
    ]
    published = [
        (row.card, _MODEL, row.compiled_gib, row.published_gib)
        for row in rows
        if row.compiled_gib is not None and row.published_gib is not None
    ]
    timed = [
        (row.card, _MODEL, row.predicted_seconds, row.published_seconds)
        for row in rows
        if row.predicted_seconds is not None and row.published_seconds is not None
    ]
    entries: dict[str, tuple[list[Pair], str]] = {
        "memory, arithmetic": (
            [*known_memory(), *compiled] if rows else [],
            "compiled programs and runs of gpt and vit",
        ),
        "memory, target": (published, "published runs planned as gpt"),
        "step time": (timed, "published runs planned as gpt, with an efficiency fitted on other sources"),
    }
    content: dict[str, dict[str, object]] = {}
    for name, (pairs, of) in entries.items():
        errors = Errors.of((predicted, true) for _, _, predicted, true in pairs)
        if errors is not None:
            cards = dict(sorted(Counter(card for card, *_ in pairs).items()))
            models = dict(sorted(Counter(model for _, model, *_ in pairs).items()))
            figures = {"runs": errors.runs, "median": errors.median, "p90": errors.p90}
            content[name] = {**figures, "of": of, "cards": cards, "models": models}
    for name, errors in more.items():
        content[name] = {"runs": errors.runs, "median": errors.median, "p90": errors.p90, "of": "runs"}
    return content

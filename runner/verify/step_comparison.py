"""Comparison of a recomputed step with what the run has recorded."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from runner.data.base import Array
from runner.training.checkpoint.reading import Checkpoint
from runner.training.metric_history import MetricHistory, StepMeans
from runner.verify.recompute import Recomputed
from runner.verify.recorded_step import RecordedStep


@dataclass(frozen=True)
class Difference:
    """A recorded value that was not computed again bit for bit.

    Attributes:
      name: of the variable or the metric.
      step: steps done.
      largest: largest absolute difference of two entries; NaN if only one of them is finite.
      relative: the same, relative to the largest recorded entry.
    """

    name: str
    step: int
    largest: float
    relative: float


@dataclass(frozen=True)
class Comparison:
    """What was compared, and where it differs.

    Attributes:
      points: number of recorded metrics that were compared.
      variables: number of recorded variables that were compared; 0: there is no checkpoint of that step.
      metric_differences: in the order of the steps.
      variable_differences: the largest relative one first.
    """

    points: int
    variables: int
    metric_differences: tuple[Difference, ...]
    variable_differences: tuple[Difference, ...]

    @property
    def is_equal(self) -> bool:
        """Whether everything that was compared is bitwise identical."""
        return not self.metric_differences and not self.variable_differences


def compare(recorded: RecordedStep, result: Recomputed) -> Comparison:
    """Compares a recomputed step with the run's metrics and, if the run has one, with the checkpoint after it."""
    assert result.history is not None
    points = 0
    metrics: list[Difference] = []
    for expected, actual in _rows(recorded.history, result.history, recorded.first):
        step, means = expected
        for name, value in means.items():
            if name not in actual:
                continue
            points += 1
            difference = _difference(name, step, np.float64(value), np.float64(actual[name]))
            if difference is not None:
                metrics.append(difference)
    variables: list[Difference] = []
    count = 0
    if recorded.saved is not None:
        count = len(recorded.saved)
        variables += _of_state(recorded.saved, result)
    variables.sort(key=_size, reverse=True)
    return Comparison(points, count, tuple(metrics), tuple(variables))


def _size(difference: Difference) -> float:
    """Returns the relative size of a difference; a NaN is larger than any number."""
    return np.inf if np.isnan(difference.relative) else difference.relative


def _rows(expected: MetricHistory, actual: MetricHistory, first: int) -> list[tuple[StepMeans, Mapping[str, float]]]:
    """Returns the recorded metrics after a step, each with what was computed again at the same step."""
    tables: list[tuple[list[StepMeans], list[StepMeans]]] = [
        (_prefixed("train/", expected.train), _prefixed("train/", actual.train)),
        (_prefixed("epoch/", expected.epochs), _prefixed("epoch/", actual.epochs)),
        (_prefixed("eval/", _evaluations(expected)), _prefixed("eval/", _evaluations(actual))),
    ]
    rows: list[tuple[StepMeans, Mapping[str, float]]] = []
    for recorded, computed in tables:
        by_step = dict(computed)
        for step, means in recorded:
            # The rows up to the start come from the checkpoint itself, so comparing them would show nothing.
            if step > first and step in by_step:
                rows.append(((step, means), by_step[step]))
    rows.sort(key=lambda row: row[0][0])
    return rows


def _prefixed(prefix: str, rows: list[StepMeans]) -> list[StepMeans]:
    prefixed: list[StepMeans] = []
    for step, means in rows:
        prefixed.append((step, {f"{prefix}{name}": value for name, value in means.items()}))
    return prefixed


def _evaluations(history: MetricHistory) -> list[StepMeans]:
    return [(step, dict(evaluation.metrics)) for step, evaluation in history.evaluations]


def _of_state(saved: Checkpoint, result: Recomputed) -> list[Difference]:
    differences: list[Difference] = []
    for path in saved:
        difference = _difference(path, saved.step, saved[path], result.variables[path])
        if difference is not None:
            differences.append(difference)
    return differences


def _difference(name: str, step: int, expected: Array | np.float64, actual: Array | np.float64) -> Difference | None:
    """Returns the difference of two values; None if they are bitwise identical."""
    before = np.asarray(expected)
    after = np.asarray(actual)
    if before.shape != after.shape:
        return Difference(name, step, np.nan, np.nan)
    # Bytes are compared first: equal arrays, which are the rule, then need no float64 copies.
    if before.dtype == after.dtype and before.tobytes() == after.tobytes():
        return None
    wide_before = before.astype(np.float64)
    wide_after = after.astype(np.float64)
    # Another dtype with the same values is not a difference, nor are NaNs of other bits, or -0.0 in place of 0.0.
    if np.array_equal(wide_before, wide_after, equal_nan=True):
        return None
    # Inf minus Inf is NaN, and NumPy would warn of it. A NaN counts as the largest difference, see `_size`.
    with np.errstate(invalid="ignore"):
        largest = float(np.max(np.abs(wide_before - wide_after), initial=0.0))
    scale = float(np.max(np.abs(wide_before), initial=0.0))
    return Difference(name, step, largest, largest / scale if scale else largest)

"""The metrics that a run keeps, and the plain values that its checkpoints store of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from runner.data.base import Array
from runner.task.base import LOSS, Evaluation
from runner.task.metrics import EPOCH, EVAL, prefixed
from runner.tracking import Tracker

# (step, metric -> mean)
StepMeans = tuple[int, dict[str, float]]

_NO_OUTPUTS = np.zeros(0, np.float32)


@dataclass
class MetricHistory:
    """Metrics so far. A sum is over the examples of a step, weighted as in the loss; a mean is a sum over its weight.

    Attributes:
      names: the metrics of a step, `loss` first.
      train: (step, means by name) of every logged window.
      open_window: (1 + names,) weight and sums of each step of the window that is not complete yet.
      epoch_sums: (1 + names,) weight and sums of the epoch's steps that were read so far.
      evaluations: (step, metrics) of every evaluation.
      epochs: (step, means by name) of every epoch that was trained to its end.
    """

    names: tuple[str, ...]
    train: list[StepMeans]
    open_window: list[Array]
    epoch_sums: Array
    evaluations: list[tuple[int, Evaluation]]
    epochs: list[StepMeans] = field(default_factory=list)

    def measured(self) -> list[StepMeans]:
        """Returns (step, logged name -> value) of each evaluation, with the means of the steps since the last one."""
        means_by_step = dict(self.epochs)
        rows: list[StepMeans] = []
        for step, evaluation in self.evaluations:
            metrics = prefixed(EVAL, evaluation.metrics)
            rows.append((step, metrics | prefixed(EPOCH, means_by_step.get(step, {}))))
        return rows


def empty(names: Sequence[str]) -> MetricHistory:
    """Returns the history of a new run; `names`: the metrics of a step, without the loss."""
    return MetricHistory((LOSS, *names), [], [], np.zeros(2 + len(names)), [])


def to_json(history: MetricHistory) -> dict[str, Any]:
    """Returns a copy of a history as plain values; JSON keeps every bit of a float."""
    return {
        "names": list(history.names),
        "train": list(history.train),
        "epochs": list(history.epochs),
        "open_window": np.array(history.open_window).tolist(),
        "epoch_sums": history.epoch_sums.tolist(),
        "evaluations": [[step, one.examples, dict(one.metrics)] for step, one in history.evaluations],
    }


def from_json(content: Mapping[str, Any]) -> MetricHistory:
    """Returns the history of plain values; raises LookupError, TypeError or ValueError if they store none."""
    names = tuple(map(str, content["names"]))
    shape = 1 + len(names)
    evaluations: list[tuple[int, Evaluation]] = []
    for step, examples, metrics in content["evaluations"]:
        evaluations.append((int(step), Evaluation(_floats(metrics), int(examples), {}, _NO_OUTPUTS)))
    return MetricHistory(
        names=names,
        train=[(int(step), _floats(means)) for step, means in content["train"]],
        open_window=[np.array(row, np.float64).reshape(shape) for row in content["open_window"]],
        epoch_sums=np.array(content["epoch_sums"], np.float64).reshape(shape),
        evaluations=evaluations,
        epochs=[(int(step), _floats(means)) for step, means in content["epochs"]],
    )


def _floats(values: Mapping[str, Any]) -> dict[str, float]:
    return {str(name): float(value) for name, value in values.items()}


class NewPoints:
    """Logs only the points that a run does not have yet.

    A resumed run computes the points after its last checkpoint again, and its history before that is logged once more,
    because some of it may have been on its way when the process died. A run that the user resumed from an earlier step
    has points of steps that it trains again: there, a point counts as logged only if its value is the same. So has a
    run that was lost before its first checkpoint.
    """

    def __init__(self, tracker: Tracker, *, continues: bool = False, repeats_steps: bool = False) -> None:
        """Reads the points that the run has, if it `continues`; `repeats_steps`: it trains steps of them again."""
        self._tracker = tracker
        self._stored = tracker.logged() if continues else {}
        # Up to this step, a logged point may be of a history that the run has left.
        self._last_repeated = 0
        if repeats_steps:
            for points in self._stored.values():
                self._last_repeated = max(self._last_repeated, max(points, default=0))

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Logs the values that the run has no point of at this step."""
        new = {key: value for key, value in values.items() if not self._is_stored(step, key, value)}
        if new:
            self._tracker.log_metrics(step, new)

    def _is_stored(self, step: int, key: str, value: float) -> bool:
        stored = self._stored.get(key, {})
        return step in stored and (step > self._last_repeated or stored[step] == value)

"""The metrics that a run keeps, and the arrays that its checkpoints store of them.

A table is an array of its steps and weights, with one more array per metric as a column:

    train (n,)           steps of the logged windows;       train/<metric> (n,)        their means
    open (n,)            weights of the open window's steps;  open/<metric> (n,)       their sums
    epoch (1,)           weight of the epoch's steps so far;  epoch/<metric> (1,)      their sums
    epochs (n,)          steps at the ends of epochs;       epochs/<metric> (n,)       means of all their steps
    evaluations (n, 2)   steps, examples;                   evaluations/<metric> (n,)
    restores (n, 3)      bad steps, steps of the checkpoints, factors

All are float64.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass, field

import numpy as np

from runner.data.base import Array
from runner.task.base import LOSS, Evaluation
from runner.task.metrics import EPOCH, EVAL

# (step, metric -> mean)
StepMeans = tuple[int, dict[str, float]]

_NO_OUTPUTS = np.zeros(0, np.float32)


@dataclass(frozen=True)
class Restore:
    """A return to a checkpoint after a NaN or Inf loss.

    Attributes:
      bad: step of the loss.
      step: the step of the checkpoint.
      factor: what the learning rate is multiplied by from there on.
    """

    bad: int
    step: int
    factor: float


@dataclass
class MetricHistory:
    """Metrics so far. A sum is over the examples of a step, weighted as in the loss; a mean is a sum over its weight.

    Attributes:
      names: the metrics of a step, `loss` first.
      train: (step, means by name) of every logged window.
      open_window: (1 + names,) weight and sums of each step of the window that is not complete yet.
      epoch_sums: (1 + names,) weight and sums of the epoch's steps that were read so far.
      evaluations: (step, metrics) of every evaluation.
      restores: returns to a checkpoint after a NaN or Inf loss.
      epochs: (step, means by name) of every epoch that was trained to its end.
    """

    names: tuple[str, ...]
    train: list[StepMeans]
    open_window: list[Array]
    epoch_sums: Array
    evaluations: list[tuple[int, Evaluation]]
    restores: list[Restore]
    epochs: list[StepMeans] = field(default_factory=list)


def empty(names: Sequence[str]) -> MetricHistory:
    """Returns the history of a new run; `names`: the metrics of a step, without the loss."""
    return MetricHistory((LOSS, *names), [], [], np.zeros(2 + len(names)), [], [])


def prefixed(prefix: str, metrics: Mapping[str, float]) -> dict[str, float]:
    """Returns metrics with a prefix before each name, such as `eval/`."""
    return {f"{prefix}{name}": value for name, value in metrics.items()}


def measured(history: MetricHistory) -> list[tuple[int, dict[str, float]]]:
    """Returns (step, logged name -> value) of each evaluation.

    The metrics of the evaluation come with the means of the training steps since the last one, if these were recorded.
    """
    means_by_step = dict(history.epochs)
    rows: list[tuple[int, dict[str, float]]] = []
    for step, evaluation in history.evaluations:
        metrics = prefixed(EVAL, evaluation.metrics)
        rows.append((step, metrics | prefixed(EPOCH, means_by_step.get(step, {}))))
    return rows


def to_arrays(history: MetricHistory) -> dict[str, Array]:
    """Returns a history as named arrays."""
    open_rows = np.array(history.open_window, np.float64).reshape(-1, 1 + len(history.names))
    evaluation_rows: list[tuple[int, int]] = []
    evaluated: list[Mapping[str, float]] = []
    for step, evaluation in history.evaluations:
        evaluation_rows.append((step, evaluation.examples))
        evaluated.append(evaluation.metrics)
    tables: dict[str, Array | list[float]] = {
        "train": [step for step, _ in history.train],
        "open": open_rows[:, 0],
        "epoch": history.epoch_sums[:1],
        "epochs": [step for step, _ in history.epochs],
        "evaluations": np.array(evaluation_rows, np.float64).reshape(-1, 2),
        "restores": np.array(list(map(astuple, history.restores)), np.float64).reshape(-1, 3),
    }
    for column, name in enumerate(history.names, start=1):
        tables[f"train/{name}"] = _column(history.train, name)
        tables[f"open/{name}"] = open_rows[:, column]
        tables[f"epoch/{name}"] = history.epoch_sums[column : column + 1]
        tables[f"epochs/{name}"] = _column(history.epochs, name)
    # A run may have been resumed with fewer metrics, as without `task.metrics`. Those that all have are stored.
    for name in evaluated[-1] if evaluated else ():
        if all(name in metrics for metrics in evaluated):
            tables[f"evaluations/{name}"] = [metrics[name] for metrics in evaluated]
    return {name: np.array(table, np.float64, order="C") for name, table in tables.items()}


def _column(rows: Sequence[StepMeans], name: str) -> list[float]:
    return [means[name] for _, means in rows]


def from_arrays(arrays: Mapping[str, Array]) -> MetricHistory:
    """Returns the history that arrays store; raises LookupError, TypeError or ValueError if they store none."""
    names = _metric_names(arrays, "train")
    open_columns = [arrays["open"]]
    epoch_columns = [arrays["epoch"]]
    for name in names:
        open_columns.append(arrays[f"open/{name}"])
        epoch_columns.append(arrays[f"epoch/{name}"])
    return MetricHistory(
        names=names,
        train=_means(arrays, "train", names),
        open_window=list(np.column_stack(open_columns)),
        epoch_sums=np.concatenate(epoch_columns),
        evaluations=_evaluations(arrays),
        restores=[Restore(int(bad), int(step), float(factor)) for bad, step, factor in arrays["restores"]],
        epochs=_means(arrays, "epochs", names),
    )


def _means(arrays: Mapping[str, Array], table: str, names: Sequence[str]) -> list[StepMeans]:
    rows: list[StepMeans] = []
    for row, step in enumerate(arrays[table]):
        rows.append((int(step), _cells(arrays, table, names, row)))
    return rows


def _cells(arrays: Mapping[str, Array], table: str, names: Sequence[str], row: int) -> dict[str, float]:
    """Returns the metrics in one row of a table, by name."""
    return {name: float(arrays[f"{table}/{name}"][row]) for name in names}


def _evaluations(arrays: Mapping[str, Array]) -> list[tuple[int, Evaluation]]:
    names = _metric_names(arrays, "evaluations")
    rows: list[tuple[int, Evaluation]] = []
    for row, (step, examples) in enumerate(arrays["evaluations"]):
        metrics = _cells(arrays, "evaluations", names, row)
        rows.append((int(step), Evaluation(metrics, int(examples), {}, _NO_OUTPUTS)))
    return rows


def _metric_names(arrays: Mapping[str, Array], table: str) -> tuple[str, ...]:
    """Returns the metrics of a table, the loss first."""
    prefix = f"{table}/"
    names = {key.removeprefix(prefix) for key in arrays if key.startswith(prefix)}
    return tuple(sorted(names, key=lambda name: (name != LOSS, name)))

"""Curves of several runs on a common axis."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from runner.compare.metrics import lower_is_better
from runner.compare.records import RunRecord, history

if TYPE_CHECKING:
    from mlflow import MlflowClient

_BATCH_SIZE = "dataset.batch_size"


@dataclass(frozen=True)
class Curves:
    """A metric of several runs.

    Attributes:
      metric: its name.
      along: label of the x axis.
      rises: higher values are better.
      points: label of a run to its points (x, value); only runs with two points or more.
    """

    metric: str
    along: str
    rises: bool
    points: Mapping[str, Sequence[tuple[float, float]]]


def read(client: MlflowClient, runs: Mapping[str, RunRecord], metric: str) -> Curves:
    """Returns a metric's curves by step, or by examples if batch sizes differ.

    Steps of different sizes don't compare.

    Args:
      client: client of the store.
      runs: label to record.
      metric: its name.
    """
    batch_sizes = {label: record.params.get(_BATCH_SIZE, "") for label, record in runs.items()}
    # A run without a recorded batch size can't be converted, so then all curves are by step.
    are_different = len(set(batch_sizes.values())) > 1
    by_examples = are_different and all(size.isdecimal() for size in batch_sizes.values())
    along = "training steps"
    if by_examples:
        along = "training examples"
    points: dict[str, Sequence[tuple[float, float]]] = {}
    for label, record in runs.items():
        curve = history(client, record.run_id, metric)
        if len(curve) < 2:
            # One point is not a line.
            continue
        examples_per_step = 1
        if by_examples:
            examples_per_step = int(batch_sizes[label])
        points[label] = [(step * examples_per_step, value) for step, value in curve]
    rises = not lower_is_better(metric, list(runs.values()))
    return Curves(metric, along, rises, points)

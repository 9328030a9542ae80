"""The curves of several runs, on an axis that they share."""

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
      along: what the points are counted in, in words.
      rises: more of it is better.
      points: label of a run to its (how far, value); only of runs with two points or more.
    """

    metric: str
    along: str
    rises: bool
    points: Mapping[str, Sequence[tuple[float, float]]]


def read(client: MlflowClient, runs: Mapping[str, RunRecord], metric: str) -> Curves:
    """Returns a metric's curves, by step, and where batch sizes differ by examples: a step is not the same then.

    Args:
      client: of the store.
      runs: label to record.
      metric: its name.
    """
    found = {label: history(client, record.run_id, metric) for label, record in runs.items()}
    sizes = {label: record.params.get(_BATCH_SIZE, "") for label, record in runs.items()}
    by_examples = len(set(sizes.values())) > 1 and all(size.isdecimal() for size in sizes.values())
    points = {
        label: [(step * int(sizes[label]) if by_examples else step, value) for step, value in one]
        for label, one in found.items()
        if len(one) > 1
    }
    rises = not lower_is_better(metric, list(runs.values()))
    return Curves(metric, "training examples" if by_examples else "training steps", rises, points)

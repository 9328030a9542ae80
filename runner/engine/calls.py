"""Inputs and outputs of a device call, for every engine: microbatches in, metrics of single examples out.

Shapes: K steps per call, M microbatches per step, B global batch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np

from runner.data.base import Array
from runner.engine.base import HostBatches, StepMetrics
from runner.task.base import LOSS

T = TypeVar("T")  # an array on an engine's devices


def cut(batches: HostBatches, microbatches: int) -> dict[str, Array]:
    """Returns every array (K, B, ...) of a call as (K M, B / M, ...), in the examples' order.

    A microbatch holds neighboring examples, so its content does not depend on the mesh.
    """
    arrays = {}
    for name, array in batches.arrays.items():
        steps, batch_size = array.shape[:2]
        arrays[name] = array.reshape(steps * microbatches, batch_size // microbatches, *array.shape[2:])
    return arrays


def first(batches: HostBatches) -> HostBatches:
    """Returns the first batch alone, K = 1."""
    return HostBatches({name: array[:1] for name, array in batches.arrays.items()}, batches.weights[:1], 1)


def example_counts(weights: Array, microbatches: int) -> Array:
    """Returns float32 (K M,), for each microbatch the total weight of its whole step, from weights (K, B)."""
    return np.repeat(_divisors(weights).astype(np.float32), microbatches)


def _divisors(weights: Array) -> Array:
    """Returns the sums of weights (K, B) by which steps divide.

    A step of padding alone has 1: it is not computed, but 0 / 0 would fill its row with NaN.
    """
    sums = weights.sum(axis=1)
    return np.where(sums > 0, sums, 1.0)


@dataclass(frozen=True)
class PendingCall(Generic[T]):
    """Metrics of single examples, still on the devices; they are summed on the host, which saves collectives.

    Attributes:
      sums: `loss`, without regularization, and the task's metrics by name: (K M, B / M), or a list with one entry per
        microbatch.
      regularization: (K M,), or a list.
      weights: (K, B), on the host.
      steps: number of real steps among the K.
      scalars: names of further metrics of a step, without examples. They follow the regularization, which then is
        (K M, 1 + scalars), and count at the last microbatch of a step.
    """

    sums: Mapping[str, T | Sequence[T]]
    regularization: T | Sequence[T]
    weights: Array
    steps: int
    microbatches: int
    to_host: Callable[[T], Array]
    scalars: Sequence[str] = ()

    def read(self) -> StepMetrics:
        """Waits for the call and returns its metrics."""
        weights = self.weights[: self.steps].astype(np.float64)
        total_weight = _divisors(weights)
        sums = {}
        for name, values in self.sums.items():
            per_example = self._rows(values).reshape(weights.shape)
            # Selected by `where`: padding may give NaN, which a product with weight 0 would keep.
            sums[name] = np.where(weights > 0, per_example, 0.0).sum(axis=1)
        scalars = self._rows(self.regularization).reshape(self.steps, self.microbatches, 1 + len(self.scalars))
        regularization = scalars[:, :, 0].mean(axis=1)
        sums[LOSS] = sums[LOSS] + regularization * total_weight
        for number, name in enumerate(self.scalars, start=1):
            sums[name] = scalars[:, -1, number] * total_weight
        return StepMetrics(sums, total_weight)

    def _rows(self, value: T | Sequence[T]) -> Array:
        """Returns float64 (real microbatches, ...)."""
        if isinstance(value, Sequence):
            rows = np.stack(list(map(self.to_host, value)))
        else:
            rows = self.to_host(value)[: self.steps * self.microbatches]
        return rows.astype(np.float64)

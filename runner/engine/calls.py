"""What a device call takes and gives back, for every engine: batches cut into micro-batches, metrics put together.

Shapes: K steps a call, M micro-batches a step, B global batch.
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
    """Returns every array of a call as (K M, B / M, ...), in the examples' order.

    A micro-batch is a run of neighbors: which examples it holds does not depend on the mesh.

    Args:
      batches: arrays (K, B, ...).
      microbatches: M.
    """
    return {
        name: array.reshape(len(array) * microbatches, array.shape[1] // microbatches, *array.shape[2:])
        for name, array in batches.arrays.items()
    }


def first(batches: HostBatches) -> HostBatches:
    """Returns the first batch alone, K = 1."""
    return HostBatches({name: array[:1] for name, array in batches.arrays.items()}, batches.weights[:1], 1)


def example_counts(weights: Array, microbatches: int) -> Array:
    """Returns float32 (K M,), what the examples of each micro-batch's whole step count for.

    Args:
      weights: (K, B), `Task.weights` of the batches.
      microbatches: M.
    """
    return np.repeat(_divisors(weights).astype(np.float32), microbatches)


def _divisors(weights: Array) -> Array:
    """Returns the sums of weights (K, B) by which steps divide; 1 for steps of padding alone."""
    sums = weights.sum(axis=1)
    return np.where(sums > 0, sums, 1.0)


@dataclass(frozen=True)
class PendingCall(Generic[T]):
    """Numbers of single examples, still on the devices: no collective is spent on metrics.

    Attributes:
      sums: `loss`, without regularization, and the task's metrics by name: (K M, B / M), or a list with one entry a
        micro-batch.
      regularization: (K M,), or a list.
      weights: (K, B), on the host.
      steps: how many of the K are real.
      microbatches: M.
      to_host: gives the whole host array of what is on the devices.
    """

    sums: Mapping[str, T | Sequence[T]]
    regularization: T | Sequence[T]
    weights: Array
    steps: int
    microbatches: int
    to_host: Callable[[T], Array]

    def read(self) -> StepMetrics:
        """Waits for the call and returns its metrics."""
        weights = self.weights[: self.steps].astype(np.float64)
        weight = _divisors(weights)
        sums = {
            # Chosen, not multiplied: what padding gives may be no number.
            name: np.where(weights > 0, self._rows(each).reshape(weights.shape), 0.0).sum(axis=1)
            for name, each in self.sums.items()
        }
        regularization = self._rows(self.regularization).reshape(self.steps, self.microbatches).mean(axis=1)
        sums[LOSS] = sums[LOSS] + regularization * weight
        return StepMetrics(sums, weight)

    def _rows(self, value: T | Sequence[T]) -> Array:
        """Returns float64 of the micro-batches that are real, one entry of the first dim each."""
        if isinstance(value, Sequence):
            rows = np.stack([self.to_host(each) for each in value])
        else:
            rows = self.to_host(value)[: self.steps * self.microbatches]
        return rows.astype(np.float64)

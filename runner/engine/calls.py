"""What a device call takes and gives back, for every engine: batches cut into micro-batches, metrics put together.

Shapes: K steps a call, M micro-batches a step, B global batch.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from runner.engine.base import Array, HostBatches, StepMetrics

IGNORE = -1  # label of padding


def cut(batches: HostBatches, parts: int) -> tuple[Array, Array]:
    """Returns images (K M, B / M, ...) and labels (K M, B / M) of a call, in their order, -1 in place of padding.

    A micro-batch is a run of neighbours: which examples it holds does not depend on the mesh.

    Args:
      batches: images (K, B, ...).
      parts: M.
    """
    labels = np.where(batches.weights > 0, batches.labels, IGNORE).astype(np.int32)
    steps, size = labels.shape
    shape = (steps * parts, size // parts)
    return batches.images.reshape(*shape, *batches.images.shape[2:]), labels.reshape(shape)


def example_counts(weights: Array, parts: int) -> Array:
    """Returns how many examples the step of each micro-batch has, (K M,), of weights (K, B)."""
    return np.repeat(np.maximum(weights.sum(axis=1), 1.0), parts)


@dataclass(frozen=True)
class PendingCall:
    """Losses and hits of single examples, still on the devices: no collective is spent on metrics.

    Attributes:
      loss: (K M, B / M), or a list with one entry a micro-batch.
      hit: likewise.
      penalty: (K M,), or a list.
      weights: (K, B), on the host.
      steps: how many of the K are real.
      parts: M.
      host: gives the whole host array of what is on the devices.
    """

    loss: Any
    hit: Any
    penalty: Any
    weights: Array
    steps: int
    parts: int
    host: Callable[[Any], Array]

    def read(self) -> StepMetrics:
        """Waits for the call and returns its metrics."""
        weights = self.weights[: self.steps]
        count = np.maximum(weights.sum(axis=1), 1.0)
        loss = (self._rows(self.loss).reshape(weights.shape) * weights).sum(axis=1) / count
        accuracy = (self._rows(self.hit).reshape(weights.shape) * weights).sum(axis=1) / count
        penalty = self._rows(self.penalty).reshape(self.steps, self.parts).mean(axis=1)
        return StepMetrics(loss + penalty, accuracy)

    def _rows(self, value: Any) -> Array:
        if isinstance(value, list):
            return np.stack([self.host(each) for each in value])
        return self.host(value)[: self.steps * self.parts]

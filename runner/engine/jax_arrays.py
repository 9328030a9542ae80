"""Arrays of the engine `jax` on their way to the host: a call's metrics, a variable's parts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from runner.engine.base import Array, Part, StepMetrics


@dataclass(frozen=True)
class Pending:
    """Losses and hits of single examples, still on the devices: (K, B), or one (B,) a step."""

    loss: Any
    hit: Any
    penalty: Any
    weights: Array
    steps: int

    def read(self) -> StepMetrics:
        """Waits for the call and returns its metrics."""
        weights = self.weights[: self.steps]
        count = np.maximum(weights.sum(axis=1), 1.0)
        loss = (_host(self.loss, self.steps) * weights).sum(axis=1) / count
        accuracy = (_host(self.hit, self.steps) * weights).sum(axis=1) / count
        return StepMetrics(loss + _host(self.penalty, self.steps), accuracy)


def _host(value: Any, steps: int) -> Array:
    return np.stack([np.asarray(each) for each in value]) if isinstance(value, list) else np.asarray(value)[:steps]


def parts(array: Any) -> list[Part]:
    """Returns the different pieces of an array, copied: the next step gives their memory away."""
    found: dict[tuple[int, ...], Part] = {}
    for shard in array.addressable_shards:
        start = tuple(index.start or 0 for index in shard.index)
        if start not in found:
            found[start] = Part(start, np.array(shard.data), tuple(array.shape))
    return list(found.values())

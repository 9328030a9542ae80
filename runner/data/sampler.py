"""Batches of examples: a seeded order of rows, resumable at any step.

Imports NumPy only.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from runner.data.base import DataSource
from runner.data.base import Rows as Indices

Weights = npt.NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class Plan:
    """The rows of every batch.

    Attributes:
      indices: int64 (steps, B), rows of the split; 0 for padding.
      weights: float32 (steps, B), 1 for an example, 0 for padding.
    """

    indices: Indices
    weights: Weights

    @property
    def steps(self) -> int:
        """Number of batches."""
        return len(self.indices)


@dataclass(frozen=True)
class Draw:
    """What the order of an epoch depends on.

    Attributes:
      seed: the run's seed, at least 0.
      epoch: the epoch's number, at least 0.
      shuffle: False for the stored order.
      stream: distinguishes the orders of the parts of a mixture; empty for a whole split.
    """

    seed: int
    epoch: int
    shuffle: bool = True
    stream: tuple[int, ...] = ()

    def generator(self) -> np.random.Generator:
        """Returns the random number generator of the epoch.

        It depends on nothing else, so a resumed run need not replay the epochs before.
        """
        return np.random.default_rng([self.seed, self.epoch, *self.stream])


@runtime_checkable
class Ordered(Protocol):
    """A source that decides itself in which order its examples are trained on."""

    def epoch_order(self, draw: Draw) -> Indices:
        """Returns int64 (size,), rows of the source, by the arguments only."""
        ...


def order_of(source: DataSource, draw: Draw) -> Indices:
    """Returns the order of a split's examples in one epoch, int64 (size,).

    It is a permutation, unless the source is a mixture, which may repeat the examples of a part.
    """
    if isinstance(source, Ordered):
        return source.epoch_order(draw)
    return shuffled(draw, source.size)


def shuffled(draw: Draw, size: int) -> Indices:
    """Returns int64 (size,), a permutation of the examples; every one is equally likely."""
    if not draw.shuffle:
        return np.arange(size, dtype=np.int64)
    return draw.generator().permutation(size).astype(np.int64, copy=False)


def steps_in_epoch(size: int, batch_size: int, remainder: str) -> int:
    """Counts the batches of one pass.

    Args:
      size: number of examples.
      batch_size: examples per batch.
      remainder: `drop` drops the last partial batch, `pad` fills it with padding of weight 0.
    """
    if remainder == "drop":
        return size // batch_size
    # A division that rounds up.
    return -(-size // batch_size)


def train_plan(
    size: int,
    *,
    batch_size: int,
    seed: int,
    epoch: int,
    start_step: int = 0,
    shuffle: bool = True,
    remainder: str = "drop",
    steps: int | None = None,
    source: DataSource | None = None,
) -> Plan:
    """Plans an epoch, or the rest of one.

    Args:
      size: number of examples.
      batch_size: examples per batch.
      seed: the run's seed.
      epoch: the epoch's number.
      start_step: steps of this epoch that are already done.
      shuffle: whether to draw a new order for this epoch.
      remainder: `drop` or `pad`, see `steps_in_epoch`.
      steps: limit on the steps of the epoch, counted from its beginning; None: no limit.
      source: the split, which may decide its order; None: every permutation is equally likely.

    Returns:
      The batches from `start_step` on, identical to those of an uninterrupted epoch.
    """
    stop = steps_in_epoch(size, batch_size, remainder)
    if steps is not None:
        stop = min(stop, steps)
    # The order of the whole epoch, also for the rest of one: a resumed run then continues with the same batches.
    draw = Draw(seed, epoch, shuffle)
    order = shuffled(draw, size) if source is None else order_of(source, draw)
    return _batches(order, batch_size, start_step, stop)


def eval_plan(size: int, batch_size: int, limit: int | None = None, rows: int | None = None) -> Plan:
    """Plans an evaluation: each example once, in the stored order.

    Args:
      size: number of examples.
      batch_size: examples per batch.
      limit: maximum number of batches; None: no limit.
      rows: rows per batch, at least `batch_size`; None: `batch_size`. The additional rows are padding.

    Returns:
      The batches. Padding has weight 0 and is at the end of its batch, so the weights sum to the number of examples.
    """
    stop = steps_in_epoch(size, batch_size, "pad")
    if limit is not None:
        stop = min(stop, limit)
    plan = _batches(np.arange(size, dtype=np.int64), batch_size, 0, stop)
    padding = (rows or batch_size) - batch_size
    if not padding:
        return plan
    widths = ((0, 0), (0, padding))
    return Plan(np.pad(plan.indices, widths), np.pad(plan.weights, widths))


def _batches(order: Indices, batch_size: int, start: int, stop: int) -> Plan:
    """Returns the batches `start` to `stop` of an order.

    Rows past its end are padding.
    """
    steps = max(0, stop - start)
    rows = order[start * batch_size : stop * batch_size]
    indices = np.zeros(steps * batch_size, np.int64)
    weights = np.zeros(steps * batch_size, np.float32)
    indices[: len(rows)] = rows
    weights[: len(rows)] = 1.0
    return Plan(indices.reshape(steps, batch_size), weights.reshape(steps, batch_size))

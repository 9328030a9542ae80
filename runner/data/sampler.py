"""Which examples make up which batch: a seeded order of indices, resumable at any step. Imports NumPy alone."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from runner.data.base import Rows as Indices

Weights = npt.NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class Plan:
    """Which examples make up which batch.

    Attributes:
      indices: int64 (steps, B), rows of the split; where an example is missing, 0.
      weights: float32 (steps, B), 1 for an example, 0 for padding.
    """

    indices: Indices
    weights: Weights

    @property
    def steps(self) -> int:
        """Number of batches."""
        return len(self.indices)


def epoch_order(seed: int, epoch: int, size: int, shuffle: bool) -> Indices:
    """Orders a split's examples for one epoch, from nothing but the arguments.

    Args:
      seed: the run's seed, at least 0.
      epoch: the epoch's number, at least 0.
      size: number of examples.
      shuffle: false for the order as stored.

    Returns:
      int64 (size,), a permutation.
    """
    if not shuffle:
        return np.arange(size, dtype=np.int64)
    return np.random.default_rng([seed, epoch]).permutation(size).astype(np.int64, copy=False)


def steps_in_epoch(size: int, batch_size: int, remainder: str) -> int:
    """Counts the batches of one pass.

    Args:
      size: number of examples.
      batch_size: examples a batch.
      remainder: `drop` leaves the last partial batch out, `pad` fills it with examples of weight 0.

    Returns:
      The number; 0 where `drop` leaves nothing.

    Raises:
      ValueError: `remainder` is neither.
    """
    if remainder not in ("drop", "pad"):
        raise ValueError(f"remainder={remainder}: drop or pad are allowed")
    return size // batch_size if remainder == "drop" else -(-size // batch_size)


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
) -> Plan:
    """Plans an epoch, or the rest of one.

    Args:
      size: number of examples.
      batch_size: examples a batch.
      seed: the run's seed.
      epoch: the epoch's number.
      start_step: steps of this epoch that were done already.
      shuffle: whether this epoch has an order of its own.
      remainder: `drop` or `pad`, see `steps_in_epoch`.
      steps: shortens the epoch to that many steps, counted from its beginning; null: all.

    Returns:
      The batches from `start_step` on: exactly those that an epoch from its beginning has there.

    Raises:
      ValueError: `remainder` is neither.
    """
    total = steps_in_epoch(size, batch_size, remainder)
    stop = total if steps is None else min(total, steps)
    order = epoch_order(seed, epoch, size, shuffle)
    return _cut(order, batch_size, start_step, stop)


def eval_plan(size: int, batch_size: int, limit: int | None = None, rows: int | None = None) -> Plan:
    """Plans an evaluation: each example once, in the order as stored.

    Args:
      size: number of examples.
      batch_size: examples per batch.
      limit: stops after that many batches; null: none is left out.
      rows: of each batch, at least `batch_size`; null: as many. Rows past the examples are padding.

    Returns:
      The batches. Padding has weight 0 and is at the end of its batch, so weights sum to the examples seen.
    """
    total = steps_in_epoch(size, batch_size, "pad")
    plan = _cut(np.arange(size, dtype=np.int64), batch_size, 0, total if limit is None else min(total, limit))
    missing = (rows or batch_size) - batch_size
    if not missing:
        return plan
    widths = ((0, 0), (0, missing))
    return Plan(np.pad(plan.indices, widths), np.pad(plan.weights, widths))


def _cut(order: Indices, batch_size: int, start: int, stop: int) -> Plan:
    steps = max(0, stop - start)
    indices = np.zeros(steps * batch_size, np.int64)
    weights = np.zeros(steps * batch_size, np.float32)
    chosen = order[start * batch_size : stop * batch_size]
    indices[: len(chosen)], weights[: len(chosen)] = chosen, 1.0
    return Plan(indices.reshape(steps, batch_size), weights.reshape(steps, batch_size))

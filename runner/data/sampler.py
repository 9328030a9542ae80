"""Batches of examples: a seeded order of rows, resumable at any step.

Imports NumPy only.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

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


def epoch_order(seed: int, epoch: int, size: int, shuffle: bool) -> Indices:
    """Returns the order of a split's examples in one epoch, by the arguments only.

    Args:
      seed: the run's seed, at least 0.
      epoch: the epoch's number, at least 0.
      size: number of examples.
      shuffle: False for the stored order.

    Returns:
      int64 (size,), a permutation.
    """
    if not shuffle:
        return np.arange(size, dtype=np.int64)
    # From the seed and the epoch alone, so that a resumed run need not replay the epochs before.
    return np.random.default_rng([seed, epoch]).permutation(size).astype(np.int64, copy=False)


def steps_in_epoch(size: int, batch_size: int, remainder: str) -> int:
    """Counts the batches of one pass.

    Args:
      size: number of examples.
      batch_size: examples per batch.
      remainder: `drop` drops the last partial batch, `pad` fills it with padding of weight 0.

    Returns:
      The number of batches; 0 if `drop` leaves none.

    Raises:
      ValueError: `remainder` is neither.
    """
    if remainder not in ("drop", "pad"):
        raise ValueError(f"dataset.remainder={remainder}: must be drop or pad")
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

    Returns:
      The batches from `start_step` on, identical to those of an uninterrupted epoch.

    Raises:
      ValueError: `remainder` is neither.
    """
    stop = steps_in_epoch(size, batch_size, remainder)
    if steps is not None:
        stop = min(stop, steps)
    # The order of the whole epoch, also for the rest of one: a resumed run then continues with the same batches.
    order = epoch_order(seed, epoch, size, shuffle)
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

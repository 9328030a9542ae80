"""Batches of examples: a seeded order of rows, resumable at any step. Imports NumPy only."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from runner.data.base import DataSource, Draw, Rows


@dataclass(frozen=True, eq=False)
class Plan:
    """The rows of every batch, (steps, B): the row 0 with the weight 0 is padding, an example has the weight 1."""

    indices: Rows
    weights: npt.NDArray[np.float32]

    @property
    def steps(self) -> int:
        """Number of batches."""
        return len(self.indices)


def steps_in_epoch(size: int, batch_size: int, remainder: str) -> int:
    """Counts the batches of one pass; `remainder` is to `drop` the last partial batch, or to `pad` it."""
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
    """Plans an epoch of at most `steps`, or the rest of it from `start_step` on, which has the same batches.

    The order is that of the source; without one, every permutation is equally likely.
    """
    stop = steps_in_epoch(size, batch_size, remainder)
    if steps is not None:
        stop = min(stop, steps)
    # The order of the whole epoch, also for the rest of one: a resumed run then continues with the same batches.
    draw = Draw(seed, epoch, shuffle)
    order = draw.order(size) if source is None else source.epoch_order(draw)
    return _batches(order, batch_size, start_step, stop)


def eval_plan(size: int, batch_size: int, limit: int | None = None, rows: int | None = None) -> Plan:
    """Plans an evaluation of at most `limit` batches: each example once, in the stored order.

    Padding is at the end of its batch, so the weights sum to the number of examples. With `rows`, at least
    `batch_size`, each batch has that many rows, and the additional ones are padding.
    """
    stop = steps_in_epoch(size, batch_size, "pad")
    if limit is not None:
        stop = min(stop, limit)
    plan = _batches(np.arange(size, dtype=np.int64), batch_size, 0, stop)
    padding = (rows or batch_size) - batch_size
    widths = ((0, 0), (0, padding))
    return Plan(np.pad(plan.indices, widths), np.pad(plan.weights, widths))


def _batches(order: Rows, batch_size: int, start: int, stop: int) -> Plan:
    """Returns the batches `start` to `stop` of an order; rows past its end are padding."""
    steps = max(0, stop - start)
    rows = order[start * batch_size : stop * batch_size]
    indices = np.zeros(steps * batch_size, np.int64)
    weights = np.zeros(steps * batch_size, np.float32)
    indices[: len(rows)] = rows
    weights[: len(rows)] = 1.0
    return Plan(indices.reshape(steps, batch_size), weights.reshape(steps, batch_size))

"""An evaluation, for every engine: what its batches give is added up on the host, while the next one is computed."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np

from runner.data.base import WEIGHT, Array
from runner.engine.base import HostBatches
from runner.task.base import LOSS, Evaluation, Outputs, Task, named_outputs

logger = logging.getLogger(__name__)

T = TypeVar("T")  # an array on an engine's devices

MOST_KEPT = 1 << 29  # bytes of outputs that are kept; those of a larger split are left out, and the log says so


@dataclass(frozen=True)
class BatchResult(Generic[T]):
    """What a batch gave, still on the devices.

    Attributes:
      loss: float32 (B,), each example's.
      totals: of `Task.totals`, by name.
      outputs: float32 (B, ...), the model's, in the model's own structure if it gives several; empty if the task
        keeps none.
    """

    loss: T
    totals: Mapping[str, T]
    outputs: Outputs


def examples_of(batch: HostBatches) -> int | None:
    """Returns how many rows of an evaluation's batch are examples; None if all are.

    Padding is at the end of a batch, see `runner.data.sampler.eval_plan`.
    """
    real = batch.arrays[WEIGHT][0] > 0
    count = int(real.sum())
    assert real[:count].all()
    return None if count == len(real) else count


def evaluate(
    task: Task,
    batches: Iterable[HostBatches],
    start: Callable[[HostBatches], BatchResult[T]],
    to_host: Callable[[T], Array],
    *,
    keep_outputs: bool = False,
) -> Evaluation:
    """Evaluates over every example of weight 1.

    Args:
      task: makes metrics of what is added up.
      batches: of one batch each, K = 1.
      start: begins to compute a batch.
      to_host: gives the whole host array of what is on the devices.
      keep_outputs: give the model's outputs too, up to `MOST_KEPT` bytes.
    """
    sums = _Sums(task, to_host, keep_outputs=keep_outputs)
    pending: tuple[BatchResult[T], HostBatches] | None = None
    for batch in batches:
        started = start(batch)
        if pending is not None:
            sums.add(*pending)
        pending = started, batch
    if pending is not None:
        sums.add(*pending)
    return sums.evaluation()


class _Sums(Generic[T]):
    """Float64 sums over the batches so far."""

    def __init__(self, task: Task, to_host: Callable[[T], Array], *, keep_outputs: bool) -> None:
        self._task = task
        self._to_host = to_host
        self._keeps = keep_outputs and task.keeps_outputs
        self._loss = self._weight = 0.0
        self._examples = self._bytes = 0
        self._totals: dict[str, Array] = {}
        self._outputs: list[Array] = []
        self._named: dict[str, list[Array]] = {}

    def add(self, result: BatchResult[T], batch: HostBatches) -> None:
        """Waits for a batch and adds it."""
        weights = batch.weights[0]
        real = batch.arrays[WEIGHT][0] > 0
        # Chosen, not multiplied: what padding gives may be no number.
        self._loss += float(np.where(weights > 0, self._to_host(result.loss), 0.0).sum(dtype=np.float64))
        self._weight += float(weights.sum(dtype=np.float64))
        self._examples += int(real.sum())
        totals = {name: self._to_host(value).astype(np.float64) for name, value in result.totals.items()}
        for name, added in self._task.addends(totals).items():
            self._totals[name] = self._totals[name] + added if name in self._totals else added
        if self._keeps:
            self._keep(result.outputs, real)

    def _keep(self, outputs: Outputs, real: Array) -> None:
        several = not hasattr(outputs, "shape")
        for name, output in named_outputs(outputs).items():
            shape = tuple(output.shape)
            if not shape or shape[0] != len(real):
                self._leave_out(f"{name} has shape {list(shape)}, not one row per example")
                return
            rows = np.asarray(self._to_host(output), np.float32)[real]
            kept = self._named.setdefault(name, []) if several else self._outputs
            kept.append(rows)
            self._bytes += rows.nbytes
        if self._bytes > MOST_KEPT and self._examples > 1:  # one is the least that an export compares
            self._leave_out(f"they take more than {MOST_KEPT >> 20} MiB")

    def _leave_out(self, reason: str) -> None:
        logger.warning("the model's outputs are not kept: %s", reason)
        self._outputs = []
        self._named = {}
        self._keeps = False

    def evaluation(self) -> Evaluation:
        """Returns the sums as metrics."""
        metrics = {LOSS: self._loss / self._weight if self._weight else 0.0}
        totals = self._totals | {LOSS: np.asarray(self._loss), WEIGHT: np.asarray(self._weight)}
        if self._examples:
            metrics |= self._task.summary(self._totals)
        outputs = np.concatenate(self._outputs) if self._outputs else np.zeros((0,), np.float32)
        named = {name: np.concatenate(rows) for name, rows in self._named.items()}
        return Evaluation(metrics, self._examples, totals, outputs, named)

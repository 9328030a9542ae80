"""An evaluation, for every engine: sums over batches on the host, while the devices compute the next batch."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np

from runner.data.base import WEIGHT, Array
from runner.engine.base import HostBatches
from runner.engine.mappings import map_values
from runner.task.base import LOSS, TASK_LOSS, Evaluation, Outputs, Task, named_outputs

logger = logging.getLogger(__name__)

T = TypeVar("T")  # an array on an engine's devices

# Most bytes of model outputs that are kept in host memory (512 MiB). Those of a larger split are dropped with a
# warning: reports do without them, but a run that ends out of memory does without everything.
MOST_KEPT = 1 << 29


@dataclass(frozen=True)
class BatchResult(Generic[T]):
    """Results of one batch, still on the devices.

    Attributes:
      loss: float32 (B,), each example's.
      totals: of `Task.totals`, by name.
      outputs: float32 (B, ...), the model's, in the model's own structure if there are several; empty if the task
        keeps none.
      added: scalar, the sum of the losses that layers add, such as penalties of weights; None: they add none.
    """

    loss: T
    totals: Mapping[str, T]
    outputs: Outputs
    added: T | None = None


def examples_of(batch: HostBatches) -> int | None:
    """Returns the number of an evaluation batch's rows that are examples, before its padding; None if all are."""
    is_example = batch.arrays[WEIGHT][0] > 0
    count = int(is_example.sum())
    assert is_example[:count].all()
    if count == len(is_example):
        return None
    return count


def without_padding(batch: HostBatches) -> HostBatches:
    """Returns an evaluation batch without its padding, which is at its end."""
    count = examples_of(batch)
    arrays = {name: array[:, :count] for name, array in batch.arrays.items()}
    return HostBatches(arrays, batch.weights[:, :count], batch.steps)


def refilled(batch: HostBatches, kept: int) -> HostBatches:
    """Returns an evaluation batch with other examples in the rows that follow its first `kept`."""
    arrays = dict(batch.arrays)
    for name in arrays.keys() - {WEIGHT}:
        array = batch.arrays[name]
        others = array[:, ::-1][:, kept:]
        if np.array_equal(others, array[:, kept:]):
            others = np.zeros_like(others)
        arrays[name] = np.concatenate([array[:, :kept], others], axis=1)
    return HostBatches(arrays, batch.weights, batch.steps)


def evaluate(
    task: Task,
    batches: Iterable[HostBatches],
    start: Callable[[HostBatches], BatchResult[T]],
    to_host: Callable[[T], Array],
    *,
    keep_outputs: bool = False,
) -> Evaluation:
    """Evaluates batches, K = 1, over every example of weight 1; keeps outputs up to `MOST_KEPT` bytes."""
    sums = _Sums(task, to_host, keep_outputs=keep_outputs)
    # One batch is always in flight: its result is read only after the next batch was started, so that the devices
    # compute while the host adds up.
    pending: tuple[BatchResult[T], HostBatches] | None = None
    for batch in batches:
        started = (start(batch), batch)
        if pending is not None:
            sums.add(*pending)
        pending = started
    if pending is not None:
        sums.add(*pending)
    return sums.evaluation()


class _Sums(Generic[T]):
    def __init__(self, task: Task, to_host: Callable[[T], Array], *, keep_outputs: bool) -> None:
        self._task = task
        self._to_host = to_host
        self._keeps = keep_outputs and task.keeps_outputs
        self._loss = 0.0
        # Of the losses that layers add: None until a batch has any.
        self._added: float | None = None
        self._weight = 0.0
        self._examples = 0
        self._bytes = 0
        self._totals: dict[str, Array] = {}
        # A model with one output has a list of its rows; one with several has a list per name.
        self._outputs: list[Array] = []
        self._named: dict[str, list[Array]] = {}

    def add(self, result: BatchResult[T], batch: HostBatches) -> None:
        weights = batch.weights[0]
        is_example = batch.arrays[WEIGHT][0] > 0
        # Selected by `where`: padding may give NaN, which a product with weight 0 would keep.
        losses = np.where(weights > 0, self._to_host(result.loss), 0.0)
        self._loss += float(losses.sum(dtype=np.float64))
        self._weight += float(weights.sum(dtype=np.float64))
        examples = int(is_example.sum())
        self._examples += examples
        if result.added is not None:
            # Keras's mean over batches, in which a batch counts as many times as it has examples.
            self._added = (self._added or 0.0) + examples * float(self._to_host(result.added))
        totals = {}
        for name, value in result.totals.items():
            totals[name] = self._to_host(value).astype(np.float64)
        addends = self._task.addends(totals)
        self._totals = self._task.joined(self._totals, addends) if self._totals else addends
        if self._keeps:
            self._keep(result.outputs, is_example)

    def _keep(self, outputs: Outputs, is_example: Array) -> None:
        has_several = not hasattr(outputs, "shape")
        for name, output in named_outputs(outputs).items():
            shape = tuple(output.shape)
            if not shape or shape[0] != len(is_example):
                self._drop_outputs(f"{name} has shape {list(shape)}, not one row per example")
                return
            rows = np.asarray(self._to_host(output), np.float32)[is_example]
            kept = self._named.setdefault(name, []) if has_several else self._outputs
            kept.append(rows)
            self._bytes += rows.nbytes
        # A single example's outputs are always kept: an export compares at least those.
        if self._bytes > MOST_KEPT and self._examples > 1:
            self._drop_outputs(f"they take more than {MOST_KEPT >> 20} MiB")

    def _drop_outputs(self, reason: str) -> None:
        logger.warning("the model's outputs are not kept: %s", reason)
        self._outputs = []
        self._named = {}
        self._keeps = False

    def evaluation(self) -> Evaluation:
        totals = self._totals | {LOSS: np.asarray(self._loss), WEIGHT: np.asarray(self._weight)}
        metrics = {LOSS: 0.0}
        if self._examples:
            metrics[LOSS] = self._task.mean_loss(totals)
            if self._added is not None:
                metrics[TASK_LOSS] = metrics[LOSS]
                metrics[LOSS] += self._added / self._examples
            metrics |= self._task.summary(self._totals)
        outputs: Array = np.zeros((0,), np.float32)
        if self._outputs:
            outputs = np.concatenate(self._outputs)
        return Evaluation(metrics, self._examples, totals, outputs, map_values(np.concatenate, self._named))

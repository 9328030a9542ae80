"""The batches that both sides compute: those that training begins with, and how they are cut."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from runner.config.schema import RunConfig, TrainerConfig
from runner.config.schema_data import DatasetConfig
from runner.data.base import ROW, WEIGHT, Array, ArraySource, DataSource
from runner.data.sampler import eval_plan
from runner.data.workers import Workers
from runner.engine.base import HostBatches
from runner.engine.lengths import epoch_steps, eval_batch, padded_rows
from runner.layout.axes import axis_size, batch_axis
from runner.task.base import DataSpec, Task
from runner.train.feed import Examples, StepsPerCall, drawn_epoch, epoch_plan
from runner.verify import points
from runner.verify.meshproof.by_path import below, chosen, indexed, keyed

# `numpy.savez` takes arrays as keyword arguments, and an array called `file` would be its own argument.
_PREFIX = "array"
# The last quarter of a padded batch is padding: at least the whole share of one device where a batch is split into 4
# parts or more. Most examples are left for the comparison with one device.
_PADDED_PARTS = 4


@dataclass(frozen=True)
class Request:
    """One verification of a checked config.

    Attributes:
      total_steps: steps of the full training, where its schedules end.
      batches: the first `verify.steps` of training, in one stack.
    """

    config: RunConfig
    data: DataSpec
    total_steps: int
    batches: HostBatches

    def stacks(self) -> list[HostBatches]:
        """Cuts the batches into device calls as long as training's longest, the last one padded to that length."""
        length = self._call_length()
        return [self.stack(start, length) for start in range(0, self.batches.steps, length)]

    def stack_of(self, step: int) -> HostBatches:
        """Returns a device call of one step, of the shape of all others."""
        return replace(self.stack(step, self._call_length()), steps=1)

    def evaluation(self, step: int) -> list[HostBatches]:
        """Returns a step's first examples in batches, as an evaluation of a split of these examples would have them.

        Their number is chosen so that the axis that splits a batch does not divide it: the last batch is padded.
        """
        arrays = self.batches.arrays
        axis = batch_axis(self.config.layout, self.config.mesh.axes)
        parts = axis_size(self.config.mesh.axes, axis)
        real = int((arrays[WEIGHT][step] > 0).sum())
        count = max(real - max(parts // 2, 1), 1)
        if count % parts == 0 and count > 1:
            count -= 1
        size = eval_batch(self.config.dataset, self.config.task, count)
        plan = eval_plan(count, size, rows=padded_rows(size, parts))
        examples = indexed(chosen(arrays, self.data.arrays), step)
        batches = []
        for indices, weight in zip(plan.indices, plan.weights, strict=True):
            batch = indexed(examples, indices[None])
            batch[WEIGHT] = weight[None]
            batches.append(HostBatches(batch, self.data.task.weights(batch), 1))
        return batches

    def at_point(self, arrays: Mapping[str, Array], number: int) -> Request:
        """Returns the request with a point's batches: if a run pads, the first point's batch ends in padding."""
        if self.config.dataset.remainder != "pad" or number != points.numbers(arrays)[0]:
            return self
        batches = self.batches
        padded = (points.step_of(arrays, number), slice(self._real_examples(), None))
        weights = batches.weights.copy()
        weights[padded] = 0
        example_weights = batches.arrays[WEIGHT].copy()
        example_weights[padded] = 0
        arrays = {**batches.arrays, WEIGHT: example_weights}
        return replace(self, batches=replace(batches, arrays=arrays, weights=weights))

    def refilled(self, step: int) -> Request:
        """Returns a padded request with other examples in the padding: those that its batch begins with."""
        real = self._real_examples()
        padding = self.batches.weights.shape[1] - real
        arrays = dict(self.batches.arrays)
        for name in arrays.keys() - {WEIGHT}:
            arrays[name] = arrays[name].copy()
            arrays[name][step, real:] = self.batches.arrays[name][step, :padding]
        return replace(self, batches=replace(self.batches, arrays=arrays))

    def _real_examples(self) -> int:
        """Returns how many examples of the padded batch are real: at least one."""
        size: int = self.batches.weights.shape[1]
        return max(size - max(1, size // _PADDED_PARTS), 1)

    def source(self) -> ArraySource:
        """Returns the examples of all batches in a row, as a split that an engine may cache on its devices."""
        examples = chosen(self.batches.arrays, self.data.arrays)
        for name, array in examples.items():
            examples[name] = array.reshape(-1, *array.shape[2:])
        return ArraySource(examples, self.data.arrays)

    def by_row(self) -> Request:
        """Returns the request for an engine that caches `source`: batches contain the rows of their examples in it."""
        shape = self.batches.weights.shape
        rows = np.arange(math.prod(shape), dtype=np.int32).reshape(shape)
        return replace(self, batches=replace(self.batches, arrays={ROW: rows, WEIGHT: self.batches.arrays[WEIGHT]}))

    def _call_length(self) -> int:
        """Returns the steps of a device call, as many as in training's longest."""
        bytes_per_step = self.batches.weights.shape[1] * sum(spec.bytes for spec in self.data.arrays.values())
        longest = StepsPerCall(self.config.trainer.steps_per_call, bytes_per_step).capacity
        return min(longest, self.batches.steps)

    def stack(self, start: int, length: int) -> HostBatches:
        """Returns a device call of the steps from `start` on, padded to a length."""
        all_batches = self.batches
        # The steps past the end repeat the last batch, for the shape alone: they are not computed.
        rows = np.minimum(np.arange(start, start + length), all_batches.steps - 1)
        arrays = indexed(all_batches.arrays, rows)
        return HostBatches(arrays, all_batches.weights[rows], min(length, all_batches.steps - start))


def first_batches(
    dataset: DatasetConfig, trainer: TrainerConfig, steps: int, source: DataSource, task: Task
) -> HostBatches:
    """Reads the batches that training would begin with, epoch after epoch.

    Raises:
      ConfigError: the split has less than one batch, or fewer than `trainer.steps_per_epoch`.
      DataError: an example can't be read.
    """
    per_epoch = epoch_steps(dataset, trainer, source.size)
    epochs: list[HostBatches] = []
    with Workers(dataset) as workers:
        examples = Examples(source, task, workers.reader(source))
        for epoch, done in enumerate(range(0, steps, per_epoch)):
            plan = epoch_plan(dataset, trainer, source, epoch, min(per_epoch, steps - done))
            epochs.append(examples.read(drawn_epoch(trainer, epoch), plan.indices, plan.weights))
    arrays = {}
    for name in epochs[0].arrays:
        arrays[name] = np.concatenate([batches.arrays[name] for batches in epochs])
    return HostBatches(arrays, np.concatenate([batches.weights for batches in epochs]), steps)


def write_arrays(path: Path, arrays: Mapping[str, Array]) -> None:
    """Writes arrays of any names for `read_arrays`."""
    np.savez(path, **keyed(_PREFIX, arrays))  # type: ignore[arg-type]


def read_arrays(path: Path) -> dict[str, Array]:
    """Reads what `write_arrays` wrote, plain arrays only: no pickled objects."""
    with np.load(path, allow_pickle=False) as file:
        return below(_PREFIX, file)


def in_float32(arrays: Mapping[str, Array]) -> dict[str, Array]:
    """Returns arrays with those in bfloat16, which NumPy's files and functions don't know, in float32."""
    found = dict(arrays)
    for key, array in arrays.items():
        if array.dtype.kind == "V":
            found[key] = array.astype(np.float32)
    return found

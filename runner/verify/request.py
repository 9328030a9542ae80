"""What the main process hands to the two sides, and what they hand back: JSON and NumPy files in one folder."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np

from runner.config.build import build
from runner.config.schema import RunConfig
from runner.data.base import ROW, WEIGHT, Array, ArraySource, ArraySpec, Dataset
from runner.data.sampler import eval_plan
from runner.data.workers import opened
from runner.engine.base import HostBatches
from runner.layout.axes import batch_axis
from runner.task.base import DataSpec
from runner.task.registry import make_task
from runner.training.feed import Examples, StepsPerCall, drawn_epoch, epoch_plan
from runner.training.lengths import check_verified, epoch_steps, eval_batch_size, eval_examples, total_steps

_REQUEST = "request.json"
_BATCHES = "batches.npz"
_PREFIX = "array/"  # NumPy takes an array called `file` for its own argument


@dataclass(frozen=True)
class Request:
    """One verification.

    Attributes:
      config: checked.
      data: what the engine is built for.
      total_steps: steps of the whole training, where its schedules end.
      batches: the first `verify.steps` of training, in one stack.
    """

    config: RunConfig
    data: DataSpec
    total_steps: int
    batches: HostBatches

    def stacks(self) -> list[HostBatches]:
        """Cuts the batches into device calls as long as training's longest, the last one padded to that length."""
        length = self._length()
        return [self._stack(start, length) for start in range(0, self.batches.steps, length)]

    def stack_of(self, step: int) -> HostBatches:
        """Returns a device call of one step, of the shape of all others."""
        return replace(self._stack(step, self._length()), steps=1)

    def batch_of(self, step: int) -> HostBatches:
        """Returns the batch of one step alone."""
        whole = self.batches
        arrays = {name: array[step : step + 1] for name, array in whole.arrays.items()}
        return HostBatches(arrays, whole.weights[step : step + 1], 1)

    def of(self, steps: int) -> Request:
        """Returns the same with the first steps alone."""
        whole = self.batches
        arrays = {name: array[:steps] for name, array in whole.arrays.items()}
        return replace(self, batches=HostBatches(arrays, whole.weights[:steps], steps))

    def evaluation(self, step: int) -> list[HostBatches]:
        """Returns a step's first examples as an evaluation of a split of them has them, in batches.

        They are so many that the axis that splits a batch does not divide them: the last batch ends in padding.
        """
        arrays = self.batches.arrays
        axis = batch_axis(self.config.layout, self.config.mesh.axes)
        parts = self.config.mesh.axes[axis] if axis else 1
        real = int((arrays[WEIGHT][step] > 0).sum())
        count = max(real - max(parts // 2, 1), 1)
        if count % parts == 0 and count > 1:
            count -= 1
        rows = eval_batch_size(self.config, count)
        plan = eval_plan(count, eval_examples(self.config, count), rows=rows)
        found = []
        for indices, weight in zip(plan.indices, plan.weights, strict=True):
            held = {name: arrays[name][step][indices][None] for name in self.data.arrays} | {WEIGHT: weight[None]}
            found.append(HostBatches(held, self.data.task.weights(held), 1))
        return found

    def source(self) -> ArraySource:
        """Returns the examples of all batches one after the other, as a split that an engine may keep."""
        arrays = self.batches.arrays
        whole = {name: arrays[name].reshape(-1, *arrays[name].shape[2:]) for name in self.data.arrays}
        return ArraySource(whole, self.data.arrays)

    def by_row(self) -> Request:
        """Returns the same for an engine that keeps `source`: batches say where in it their examples are."""
        shape = self.batches.weights.shape
        rows = np.arange(math.prod(shape), dtype=np.int32).reshape(shape)
        return replace(self, batches=replace(self.batches, arrays={ROW: rows, WEIGHT: self.batches.arrays[WEIGHT]}))

    def _length(self) -> int:
        bytes_a_step = self.batches.weights.shape[1] * sum(spec.bytes for spec in self.data.arrays.values())
        return min(StepsPerCall(self.config.trainer.steps_per_call, bytes_a_step).capacity, self.batches.steps)

    def _stack(self, start: int, length: int) -> HostBatches:
        rows = np.arange(start, start + length)
        whole = self.batches
        kept = np.minimum(rows, whole.steps - 1)  # what is past the end is not computed
        arrays = {name: array[kept] for name, array in whole.arrays.items()}
        return HostBatches(arrays, whole.weights[kept], min(length, whole.steps - start))


def make_request(config: RunConfig, data: Dataset) -> Request:
    """Takes the batches that training would begin with, epoch after epoch.

    Raises:
      ConfigError: the split holds less than one batch, or fewer than `trainer.steps_per_epoch`.
      DataError: an example can't be read.
    """
    check_verified(config, data.train)
    task = make_task(config.task, data.specs, data.train, vocabulary=data.vocabulary)
    size = data.train.size
    per_epoch = epoch_steps(config, size)
    epochs: list[HostBatches] = []
    left = config.verify.steps
    epoch = 0
    with opened(config.dataset, config.trainer.seed) as workers:
        examples = Examples(data.train, task, workers.reader(data.train))
        while left:
            steps = min(per_epoch, left)
            plan = epoch_plan(config, size, epoch, steps)
            epochs.append(examples.read(drawn_epoch(config, epoch), plan.indices, plan.weights))
            left = left - steps
            epoch = epoch + 1
    arrays = {name: np.concatenate([each.arrays[name] for each in epochs]) for name in epochs[0].arrays}
    weights = np.concatenate([each.weights for each in epochs])
    batches = HostBatches(arrays, weights, config.verify.steps)
    return Request(config, DataSpec(task.arrays, task), total_steps(config, size), batches)


def write_request(folder: Path, request: Request) -> None:
    """Writes the request for `read_request`."""
    content = {
        "config": asdict(request.config),
        "arrays": {name: asdict(spec) for name, spec in request.data.arrays.items()},
        "constants": request.data.task.constants,
        "total_steps": request.total_steps,
    }
    (folder / _REQUEST).write_text(json.dumps(content))
    write_arrays(folder / _BATCHES, request.batches.arrays)


def read_config(folder: Path) -> RunConfig:
    """Reads the config of what `write_request` wrote; none of the user's code is imported for it."""
    content = json.loads((folder / _REQUEST).read_text())
    return build(RunConfig, content["config"], "config")


def read_request(folder: Path) -> Request:
    """Reads what `write_request` wrote; the task is made again.

    Raises:
      ConfigError: the task does not fit the arrays.
    """
    content = json.loads((folder / _REQUEST).read_text())
    config = read_config(folder)
    specs = {name: _spec(fields) for name, fields in content["arrays"].items()}
    task = make_task(config.task, specs, constants=content["constants"])
    arrays = read_arrays(folder / _BATCHES)
    batches = HostBatches(arrays, task.weights(arrays), config.verify.steps)
    return Request(config, DataSpec(specs, task), content["total_steps"], batches)


def _spec(fields: Mapping[str, object]) -> ArraySpec:
    """Returns a spec from JSON, which has lists in place of tuples."""
    return ArraySpec(**{key: tuple(value) if isinstance(value, list) else value for key, value in fields.items()})  # type: ignore[arg-type]


def write_arrays(path: Path, arrays: Mapping[str, Array]) -> None:
    """Writes arrays of any names for `read_arrays`; NumPy's files know no bfloat16, which float32 holds exactly.

    The file is there when it is whole: another process may wait for it.
    """
    plain = {k: array.astype(np.float32) if array.dtype.kind == "V" else array for k, array in arrays.items()}
    part = path.with_name(f"part-{path.name}")
    np.savez(part, **{f"{_PREFIX}{name}": array for name, array in plain.items()})  # type: ignore[arg-type]
    part.replace(path)


def read_arrays(path: Path) -> dict[str, Array]:
    """Reads what `write_arrays` wrote, plain arrays only."""
    with np.load(path, allow_pickle=False) as held:
        return {key.removeprefix(_PREFIX): held[key] for key in held.files}

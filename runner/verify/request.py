"""What the main process hands to the two sides, and what they hand back: JSON and NumPy files in one folder."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
from omegaconf import OmegaConf

from runner.config.schema import RunConfig
from runner.data import Dataset
from runner.data.pipeline import gather
from runner.engine.base import Array, DataSpec, HostBatches
from runner.training.feed import CallSize, epoch_plan
from runner.training.lengths import check_verified, epoch_steps, total_steps

_REQUEST, _BATCHES = "request.json", "batches.npz"


@dataclass(frozen=True)
class Request:
    """One verification.

    Attributes:
      config: checked.
      data: shapes that the engine is built for.
      total_steps: steps of the whole training, where its schedules end.
      batches: the first `verify.steps` of training, in one stack.
    """

    config: RunConfig
    data: DataSpec
    total_steps: int
    batches: HostBatches

    def stacks(self) -> list[HostBatches]:
        """Cuts the batches into device calls as long as training's longest, the last one padded to that length."""
        whole = self.batches
        bytes_a_step = whole.labels.shape[1] * math.prod(self.data.input_shape)
        length = CallSize(self.config.trainer.steps_per_call, bytes_a_step).capacity
        length = min(length, whole.steps)
        return [self._stack(start, length) for start in range(0, whole.steps, length)]

    def by_place(self) -> Request:
        """Returns the same for an engine that holds the images of all batches, one after the other."""
        shape = self.batches.labels.shape
        places = np.arange(math.prod(shape), dtype=np.int32).reshape(shape)
        return replace(self, batches=replace(self.batches, images=places))

    def _stack(self, start: int, length: int) -> HostBatches:
        rows = np.arange(start, start + length)
        kept = np.minimum(rows, self.batches.steps - 1)  # what is past the end is not computed
        whole = self.batches
        steps = min(length, whole.steps - start)
        return HostBatches(whole.images[kept], whole.labels[kept], whole.weights[kept], steps)


def make_request(config: RunConfig, data: Dataset) -> Request:
    """Takes the batches that training would begin with, epoch after epoch.

    Raises:
      ConfigError: the split holds less than one batch, or fewer than `trainer.steps_per_epoch`.
    """
    check_verified(config, data.train)
    per_epoch = epoch_steps(config, data.train.size)
    images: list[Array] = []
    labels: list[Array] = []
    weights: list[Array] = []
    left, epoch = config.verify.steps, 0
    while left:
        steps = min(per_epoch, left)
        plan = epoch_plan(config, data.train.size, epoch, steps)
        some, theirs = gather(data.train, plan.indices)
        images.append(some)
        labels.append(theirs)
        weights.append(plan.weights)
        left, epoch = left - steps, epoch + 1
    stack = HostBatches(np.concatenate(images), np.concatenate(labels), np.concatenate(weights), config.verify.steps)
    height, width, channels = (int(size) for size in stack.images.shape[2:])
    spec = DataSpec((height, width, channels), data.num_classes)
    return Request(config, spec, total_steps(config, data.train.size), stack)


def write_request(folder: Path, request: Request) -> None:
    """Writes the request for `read_request`."""
    content = {
        "config": asdict(request.config),
        "input_shape": request.data.input_shape,
        "num_classes": request.data.num_classes,
        "total_steps": request.total_steps,
    }
    (folder / _REQUEST).write_text(json.dumps(content))
    batches = request.batches
    np.savez(folder / _BATCHES, images=batches.images, labels=batches.labels, weights=batches.weights)


def read_request(folder: Path) -> Request:
    """Reads what `write_request` wrote."""
    content = json.loads((folder / _REQUEST).read_text())
    config = OmegaConf.to_object(OmegaConf.merge(OmegaConf.structured(RunConfig), OmegaConf.create(content["config"])))
    assert isinstance(config, RunConfig)
    height, width, channels = content["input_shape"]
    arrays = read_arrays(folder / _BATCHES)
    batches = HostBatches(arrays["images"], arrays["labels"], arrays["weights"], len(arrays["labels"]))
    return Request(
        config, DataSpec((height, width, channels), content["num_classes"]), content["total_steps"], batches
    )


def read_arrays(path: Path) -> dict[str, Array]:
    """Reads a NumPy archive that holds plain arrays only."""
    with np.load(path, allow_pickle=False) as held:
        return {key: held[key] for key in held.files}

"""What tasks with one label per position share: pixels of an image, steps of a series, tokens of a text.

Means are over the counted positions of a step, whatever examples these are in. An example's loss is a sum, and its
weight the number of its counted positions, so a mean over the examples of a mesh is the mean over all positions.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from runner.arrays import Arrays, Tensor
from runner.config.schema_task import TaskConfig
from runner.data.base import WEIGHT, Array, ArraySpec, Batch, DataSource
from runner.errors import invalid
from runner.layout.axes import SEQUENCE
from runner.task.supervised import Supervised, default_target, no_array

_LABEL_WEIGHT = "task.label_weight"


def spatial_shape(spec: ArraySpec) -> tuple[int, ...]:
    """Returns the shape of an array of one number per position, without a last dim of 1 such as a channel."""
    if len(spec.shape) > 1 and spec.shape[-1] == 1:
        return spec.shape[:-1]
    return spec.shape


def without_roles(config: TaskConfig, arrays: Mapping[str, ArraySpec], label_weight: str | None) -> list[str]:
    """Returns the names of the arrays that are no target and no weight."""
    target = tuple(config.target) or default_target(arrays)
    return [name for name in arrays if name not in {*target, config.example_weight, label_weight}]


class PerPosition(Supervised):
    """Positions that count by their labels' weights.

    Shapes: B examples, *P positions in one dim or more, C classes.

    Attributes:
      label: name of the array of the labels.
      positions: P, sizes of the dims of the positions.
    """

    label: str
    positions: tuple[int, ...]
    step_metrics = ("accuracy",)
    # Array with a weight per label; None: all labels count as 1.
    _label_weight: str | None = None

    @abstractmethod
    def counts(self, ops: Arrays, batch: Mapping[str, Tensor]) -> Tensor:
        """Returns float32 (B, *P), the weight of each label; 0 for padding and for what is not counted."""

    def find_label_weight(self, name: str | None, arrays: Mapping[str, ArraySpec]) -> None:
        """Adds the array of the labels' weights, if `task.label_weight` names one.

        Raises:
          ConfigError: the dataset does not have it, or it does not have one number per position.
        """
        if name is None:
            return
        if name not in arrays:
            fix = "name one of these, or remove task.label_weight"
            raise invalid(_LABEL_WEIGHT, name, problem=no_array(name, arrays), fix=fix)
        spec = arrays[name]
        if spatial_shape(spec) != self.positions or np.dtype(spec.dtype).kind not in "biuf":
            problem = f"must have one number per label, shape {list(self.positions)} per example, but its dtype is "
            problem += f"{spec.dtype} and its shape {list(spec.shape)}"
            fix = "name another array, or remove task.label_weight"
            raise invalid(_LABEL_WEIGHT, name, problem=problem, fix=fix)
        self._label_weight = name
        self.arrays = {**self.arrays, name: spec}

    def check_label_weight(self, source: DataSource, split: str) -> None:
        """Checks that the weights of a split's labels are finite, at least 0 and not all 0."""
        if self._label_weight is None:
            return
        weight = source.column(self._label_weight)
        if weight is None:
            return
        low = float(weight.min(initial=0))
        high = float(weight.max(initial=0))
        if low >= 0 and high > 0 and math.isfinite(high):
            return
        problem = f"needs a label with a weight above 0, but the {split} split has none"
        if low < 0 or not math.isfinite(low + high):
            problem = f"must have finite numbers of at least 0, but the {split} split has {low if low < 0 else high:g}"
        raise invalid(_LABEL_WEIGHT, self._label_weight, problem=problem, fix="fix the array, or name another")

    def _name_sequence_dims(self) -> None:
        """Names the dim of the steps in the specs, which a user's arrays don't have."""
        if len(self.positions) != 1:
            return
        specs = dict(self.arrays)
        for name, spec in specs.items():
            dims = spec.dims or ("",) * len(spec.shape)
            if spec.shape[:1] == self.positions and not dims[0]:
                specs[name] = replace(spec, dims=(SEQUENCE, *dims[1:]))
        self.arrays = specs

    @property
    def weighs_arrays(self) -> bool:
        """Whether `weights` reads other arrays than `weight`, which marks padding."""
        return self._label_weight is not None

    def weights(self, batch: Batch) -> Array:
        """Returns the number of counted positions of each example, float32 (..., B), 0 for padding."""
        real = np.asarray(batch[WEIGHT], np.float32)
        if not self.weighs_arrays:
            return real * np.float32(np.prod(self.positions))
        counts = self._counts_on_host(batch, (*real.shape, *self.positions))
        # In float64: a large image has more positions than float32 sums exactly one by one.
        return np.asarray(real * counts.reshape(*real.shape, -1).sum(-1, dtype=np.float64), np.float32)

    def _counts_on_host(self, batch: Batch, shape: tuple[int, ...]) -> Array:
        """Returns what `counts` does of arrays on the host, without padding, float32 of a shape (..., B, *P)."""
        if self._label_weight is None:
            return np.ones(shape, np.float32)
        return np.asarray(batch[self._label_weight], np.float32).reshape(shape)

    def counted_terms(self, ops: Arrays, batch: Mapping[str, Tensor]) -> Tensor:
        """Returns the number of counted positions of each example (B,), 0 for padding."""
        return ops.sum(self.counts(ops, batch), axis=tuple(range(1, len(self.positions) + 1)))

    def _without_channel(self, ops: Arrays, array: Tensor) -> Tensor:
        """Returns an array (B, *P) or (B, *P, 1) as (B, *P)."""
        if len(array.shape) > 1 + len(self.positions):
            return ops.squeeze(array, -1)
        return array

"""Signature of a served model: a dataset's arrays before they were standardized, and the task's answers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from runner import arrays
from runner.arrays import Arrays, Tensor
from runner.data.base import Array, ArraySpec, Encoding
from runner.task.base import DataSpec

NAME = "serving_default"
# Digits after the first one of a deviation that a standardized float32 distinguishes, also in the tails.
_DIGITS = 5


@dataclass(frozen=True)
class Served:
    """A served model's signature.

    Attributes:
      encoding: how the run's data became numbers; standardized arrays are taken raw, in float32.
    """

    spec: DataSpec
    encoding: Encoding = field(default_factory=Encoding)

    @property
    def inputs(self) -> dict[str, ArraySpec]:
        """Specs of the input arrays, by name."""
        inputs: dict[str, ArraySpec] = {}
        for name in self.spec.task.input_names:
            inputs[name] = self.spec.arrays[name]
            if name in self.encoding.mean:
                inputs[name] = replace(inputs[name], dtype="float32")
        return inputs

    def model_inputs(self, ops: Arrays, arrays: Mapping[str, Tensor]) -> Tensor:
        """Returns the model's inputs for served arrays."""
        standardized = {name: self._standardized(ops, name, arrays[name]) for name in self.inputs}
        return self.spec.task.inputs(ops, standardized)

    def _standardized(self, ops: Arrays, name: str, x: Tensor) -> Tensor:
        if name not in self.encoding.mean:
            return x
        mean = np.asarray(self.encoding.mean[name])
        deviation = np.asarray(self.encoding.deviation[name])
        # The mean is subtracted in two parts. Rounded to one float32, the mean of large numbers that are close
        # together, such as years, would be off by more than their deviation.
        high = mean.astype(np.float32)
        low = (mean - high).astype(np.float32)
        return ((ops.cast(x, "float32") - high) - low) / deviation.astype(np.float32)

    def standardized(self, arrays: Mapping[str, Array]) -> dict[str, Array]:
        """Returns arrays (N, ...) as the run's data has them, computed in float64; others are unchanged."""
        standardized = dict(arrays)
        for name, mean in self.encoding.mean.items():
            if name in standardized:
                centered = standardized[name].astype(np.float64) - np.asarray(mean)
                scaled = centered / np.asarray(self.encoding.deviation[name])
                standardized[name] = scaled.astype(np.float32)
        return standardized

    def raw(self, arrays: Mapping[str, Array]) -> dict[str, Array]:
        """Returns arrays (N, ...) as they were before `standardized`, in float64, to the digits that float32 kept."""
        raw = dict(arrays)
        for name, mean in self.encoding.mean.items():
            if name in raw:
                deviation = np.asarray(self.encoding.deviation[name])
                values = raw[name].astype(np.float64) * deviation + np.asarray(mean)
                digits = _DIGITS - int(np.floor(np.log10(deviation.max())))
                raw[name] = np.round(values, max(digits, 0))
        return raw

    def answers(self, outputs: Array | Mapping[str, Array]) -> dict[str, Array]:
        """Returns the expected answers for a model's outputs, computed in float64."""
        exact: Array | dict[str, Array]
        if isinstance(outputs, Mapping):
            exact = {name: np.asarray(output, np.float64) for name, output in outputs.items()}
        else:
            exact = np.asarray(outputs, np.float64)
        answers = self.spec.task.predictions(arrays.of(np), exact)
        return {name: np.asarray(answer) for name, answer in answers.items()}

    def names(self) -> dict[str, list[str]]:
        """Returns the names of the categories or columns of the outputs and of each input, as far as they have any."""
        outputs = self.spec.task.outputs
        names = {"outputs": outputs.names}
        for name, output in outputs.by_name.items():
            names[name] = output.names
        for name, spec in self.inputs.items():
            names[name] = spec.names
        return {name: list(categories) for name, categories in names.items() if categories}

"""What a served model takes and answers: a dataset's arrays before they were standardized, and what the task says."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from runner.data.base import Array, ArraySpec, Encoding
from runner.task import namespace
from runner.task.base import DataSpec, Tensor
from runner.task.namespace import Namespace

NAME = "serving_default"


@dataclass(frozen=True)
class Served:
    """A served model's signature.

    Attributes:
      spec: the run's data and task.
      encoding: how the run's data became numbers; what was standardized is taken as it was before, in float32.
    """

    spec: DataSpec
    encoding: Encoding = field(default_factory=Encoding)

    @property
    def inputs(self) -> dict[str, ArraySpec]:
        """Specs of the arrays that it takes, by name."""
        specs = {name: self.spec.arrays[name] for name in self.spec.task.input_names}
        return {
            name: replace(spec, dtype="float32") if name in self.encoding.mean else spec
            for name, spec in specs.items()
        }

    def model_inputs(self, ops: Namespace, arrays: Mapping[str, Tensor]) -> Tensor:
        """Returns what the model takes, of the arrays that are served.

        Args:
          ops: of the arrays.
          arrays: (B, ...) by name.
        """
        return self.spec.task.inputs(ops, {name: self._standardized(ops, name, arrays[name]) for name in self.inputs})

    def _standardized(self, ops: Namespace, name: str, x: Tensor) -> Tensor:
        if name not in self.encoding.mean:
            return x
        mean, deviation = (np.asarray(each[name]) for each in (self.encoding.mean, self.encoding.deviation))
        # In two parts: rounded to float32, the mean of large numbers near each other would be off by more than they.
        high = mean.astype(np.float32)
        low = (mean - high).astype(np.float32)
        return ((ops.cast(x, "float32") - high) - low) / deviation.astype(np.float32)

    def standardized(self, arrays: Mapping[str, Array]) -> dict[str, Array]:
        """Returns arrays (N, ...) as the run's data has them, of those that are served and others; in float64."""
        found = dict(arrays)
        for name, mean in self.encoding.mean.items():
            if name in found:
                away = found[name].astype(np.float64) - np.asarray(mean)
                found[name] = (away / np.asarray(self.encoding.deviation[name])).astype(np.float32)
        return found

    def answers(self, outputs: Array | Mapping[str, Array]) -> dict[str, Array]:
        """Returns what must be answered where the model gives these outputs, computed in float64.

        Args:
          outputs: (N, ...) of the model; by name if it gives several.
        """
        exact: Array | dict[str, Array]
        if isinstance(outputs, Mapping):
            exact = {name: np.asarray(output, np.float64) for name, output in outputs.items()}
        else:
            exact = np.asarray(outputs, np.float64)
        found = self.spec.task.predictions(namespace.of(np), exact)
        return {name: np.asarray(answer) for name, answer in found.items()}

    def answer_specs(self, outputs: Array | Mapping[str, Array]) -> dict[str, ArraySpec]:
        """Returns the specs of what is answered, by name, float32 and int64.

        Args:
          outputs: (N, ...) of the model; by name if it gives several.
        """
        return {
            name: ArraySpec(array.shape[1:], "int64" if np.issubdtype(array.dtype, np.integer) else "float32")
            for name, array in self.answers(outputs).items()
        }

    def describe(self, outputs: Array | Mapping[str, Array]) -> dict[str, object]:
        """Returns it in words, for the record: `uint8 (batch, height=28, width=28, channel=1)`."""
        return {
            "name": NAME,
            "inputs": {name: _words(spec) for name, spec in self.inputs.items()},
            "answers": {name: _words(spec) for name, spec in self.answer_specs(outputs).items()},
        }

    def names(self) -> dict[str, list[str]]:
        """Returns the names of what an array counts or of its columns: of the outputs and of each input."""
        held = {"outputs": self.spec.task.outputs.names} | {name: spec.names for name, spec in self.inputs.items()}
        return {name: list(names) for name, names in held.items() if names}


def _words(spec: ArraySpec) -> str:
    names = spec.dims or ("",) * len(spec.shape)
    dims = [f"{name}={size}" if name else str(size) for name, size in zip(names, spec.shape, strict=True)]
    return f"{spec.dtype} ({', '.join(['batch', *dims])})"

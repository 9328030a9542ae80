"""What a served model takes and answers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from runner.data.base import Array, ArraySpec
from runner.engine.base import DataSpec


@dataclass(frozen=True)
class Served:
    """A served model's signature, `serving_default`.

    Attributes:
      spec: the run's data and task.
      example: answer -> array (1, ...), what the model answers for one example.
    """

    spec: DataSpec
    example: Mapping[str, Array]

    @property
    def inputs(self) -> dict[str, ArraySpec]:
        """Specs of the arrays that it takes, by name, as the dataset has them."""
        return {name: self.spec.arrays[name] for name in self.spec.task.input_names}

    @property
    def answers(self) -> dict[str, ArraySpec]:
        """Specs of what it answers, by name: float32 and int64."""
        return {
            name: ArraySpec(array.shape[1:], "int64" if np.issubdtype(array.dtype, np.integer) else "float32")
            for name, array in self.example.items()
        }

    def describe(self) -> dict[str, object]:
        """Returns it in words, for the record: `uint8 (batch, height=28, width=28, channel=1)`."""
        return {
            "name": "serving_default",
            "inputs": {name: _words(spec) for name, spec in self.inputs.items()},
            "answers": {name: _words(spec) for name, spec in self.answers.items()},
        }


def _words(spec: ArraySpec) -> str:
    names = spec.dims or ("",) * len(spec.shape)
    dims = [f"{name}={size}" if name else str(size) for name, size in zip(names, spec.shape, strict=True)]
    return f"{spec.dtype} ({', '.join(['batch', *dims])})"

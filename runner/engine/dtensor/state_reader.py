"""Copies a DTensor engine's state to the host by one program: read one by one, each variable costs a call a device."""

from __future__ import annotations

import math
from collections.abc import Mapping

import tensorflow as tf
from tensorflow.experimental import dtensor

from runner.engine.base import Shard
from runner.engine.dtensor.arrays import shards
from runner.engine.dtensor.variable_reads import read_stored


class StateReader:
    """Reads variables. What every device holds whole arrives as one vector, whatever the number of variables."""

    def __init__(self, variables: Mapping[str, dtensor.DVariable]) -> None:
        """Makes the program.

        Args:
          variables: by path.
        """
        self._variables = variables
        self._whole = [path for path, variable in variables.items() if _is_whole_float32(variable)]
        self._others = [path for path, variable in variables.items() if not _is_whole_float32(variable)]

        def read() -> tuple[list[tf.Tensor], list[tf.Tensor]]:
            flat = [tf.reshape(read_stored(variables[path]), [-1]) for path in self._whole]
            return [tf.concat(flat, 0)] if flat else [], [read_stored(variables[path]) for path in self._others]

        self._read = tf.function(read, autograph=False)

    def shards(self) -> dict[str, list[Shard]]:
        """Returns host copies of the variables, each in its different pieces."""
        together, others = self._read()
        found = {path: shards(value) for path, value in zip(self._others, others, strict=True)}
        # of several processes the first one's alone
        start = 0
        vectors = shards(together[0]) if together else []
        for path in self._whole:
            shape = tuple(self._variables[path].shape.as_list())
            size = math.prod(shape)
            parts = [vector.array[start : start + size].reshape(shape) for vector in vectors]
            found[path] = [Shard((0,) * len(shape), part, shape) for part in parts]
            start += size
        return {path: found[path] for path in self._variables}


def _is_whole_float32(variable: dtensor.DVariable) -> bool:
    return variable.dtype.name == "float32" and all(s == dtensor.UNSHARDED for s in variable.layout.sharding_specs)

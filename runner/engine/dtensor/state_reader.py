"""Copies a DTensor engine's state to the host by one program.

Reading each variable by itself costs a call per variable and device.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import tensorflow as tf
from tensorflow.experimental import dtensor

from runner.engine.base import Shard
from runner.engine.dtensor.arrays import shards
from runner.engine.dtensor.variable_reads import read_stored


class StateReader:
    """Reads variables; all replicated ones arrive as one vector, whatever their number."""

    def __init__(self, variables: Mapping[str, dtensor.DVariable]) -> None:
        """Creates the program.

        Args:
          variables: by path.
        """
        self._variables = variables
        # A vector has one dtype. All but a few variables are float32.
        self._joined = [path for path, variable in variables.items() if _is_replicated_float32(variable)]
        self._others = [path for path, variable in variables.items() if not _is_replicated_float32(variable)]

        def read() -> tuple[list[tf.Tensor], list[tf.Tensor]]:
            flat = [tf.reshape(read_stored(variables[path]), [-1]) for path in self._joined]
            vectors = [tf.concat(flat, 0)] if flat else []
            return vectors, [read_stored(variables[path]) for path in self._others]

        self._read = tf.function(read, autograph=False)

    def shards(self) -> dict[str, list[Shard]]:
        """Returns host copies of the variables' distinct shards, by path."""
        vectors, others = self._read()
        found = {path: shards(value) for path, value in zip(self._others, others, strict=True)}
        # Of several processes only the one with the mesh's first device has a shard of a replicated vector.
        vector_shards = shards(vectors[0]) if vectors else []
        start = 0
        for path in self._joined:
            shape = tuple(self._variables[path].shape.as_list())
            size = math.prod(shape)
            parts = [shard.array[start : start + size].reshape(shape) for shard in vector_shards]
            found[path] = [Shard((0,) * len(shape), part, shape) for part in parts]
            start += size
        return {path: found[path] for path in self._variables}


def _is_replicated_float32(variable: dtensor.DVariable) -> bool:
    is_replicated = all(axis == dtensor.UNSHARDED for axis in variable.layout.sharding_specs)
    return variable.dtype.name == "float32" and is_replicated

"""Copies a DTensor engine's state to the host by one program.

Reading each variable by itself costs a call per variable and device.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import tensorflow as tf
from tensorflow.experimental import dtensor

from runner.engine.base import Shard
from runner.engine.dtensor.arrays import shards, spec_of
from runner.engine.dtensor.variable_reads import read_stored
from runner.engine.mappings import subset


class StateReader:
    """Reads variables.

    All replicated ones arrive as one vector, whatever their number.
    """

    def __init__(self, variables: Mapping[str, dtensor.DVariable]) -> None:
        """Creates the program.

        Args:
          variables: by path.
        """
        self._variables = variables
        # A vector has one dtype. All but a few variables are float32.
        self._joined: dict[str, dtensor.DVariable] = {}
        self._others: dict[str, dtensor.DVariable] = {}
        for path, variable in variables.items():
            if _is_replicated_float32(variable):
                self._joined[path] = variable
            else:
                self._others[path] = variable

        def read() -> tuple[list[tf.Tensor], list[tf.Tensor]]:
            flat = [tf.reshape(read_stored(variable), [-1]) for variable in self._joined.values()]
            vectors = []
            if flat:
                vectors.append(tf.concat(flat, 0))
            return vectors, list(map(read_stored, self._others.values()))

        self._read = tf.function(read, autograph=False)

    def shards(self) -> dict[str, list[Shard]]:
        """Returns host copies of the variables' distinct shards, by path."""
        vectors, others = self._read()
        shards_by_path: dict[str, list[Shard]] = {}
        for path, value in zip(self._others, others, strict=True):
            shards_by_path[path] = shards(value)
        vector = None
        if vectors:
            # It is replicated, so there is one shard.
            [vector] = shards(vectors[0])
        start = 0
        for path, variable in self._joined.items():
            shape = tuple(variable.shape.as_list())
            stop = start + math.prod(shape)
            assert vector is not None
            part = vector.array[start:stop].reshape(shape)
            shards_by_path[path] = [Shard((0,) * len(shape), part, shape)]
            start = stop
        return subset(shards_by_path, self._variables)


def _is_replicated_float32(variable: dtensor.DVariable) -> bool:
    return variable.dtype.name == "float32" and not any(spec_of(variable.layout))

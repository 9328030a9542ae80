"""Copies a DTensor engine's state to the host by one program: read one by one, each variable costs a call a device."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from runner.engine.base import Part
from runner.engine.dtensor.environment import parts
from runner.engine.dtensor.variable_reads import read_held


class StateReader:
    """Reads variables. What every device holds whole arrives as one vector, whatever the number of variables."""

    def __init__(self, held: Mapping[str, Any]) -> None:
        """Makes the program.

        Args:
          held: path to DVariable.
        """
        import tensorflow as tf

        self._held = held
        self._whole = [path for path, variable in held.items() if _is_whole_float32(variable)]
        self._others = [path for path in held if path not in set(self._whole)]

        def read() -> tuple[list[Any], list[Any]]:
            flat = [tf.reshape(read_held(held[path]), [-1]) for path in self._whole]
            return [tf.concat(flat, 0)] if flat else [], [read_held(held[path]) for path in self._others]

        self._read = tf.function(read, autograph=False)

    def parts(self) -> dict[str, list[Part]]:
        """Returns host copies of the variables, each in its different pieces."""
        together, others = self._read()
        found = {path: parts(value) for path, value in zip(self._others, others, strict=True)}
        start, vector = 0, parts(together[0])[0].array if together else np.zeros(0, np.float32)
        for path in self._whole:
            shape = tuple(self._held[path].shape.as_list())
            size = math.prod(shape)
            found[path] = [Part((0,) * len(shape), vector[start : start + size].reshape(shape), shape)]
            start += size
        return {path: found[path] for path in self._held}


def _is_whole_float32(variable: Any) -> bool:
    from tensorflow.experimental import dtensor

    return variable.dtype.name == "float32" and all(s == dtensor.UNSHARDED for s in variable.layout.sharding_specs)

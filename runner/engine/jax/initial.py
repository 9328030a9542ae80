"""Initial values of a model's variables, the very numbers that Keras draws, placed one variable at a time.

A model is built without values. Its initializers are called when the variables are placed, each by itself on one
device as in a build of stock Keras, so the numbers are the same on every mesh. Then each device gets its shard. So no
memory ever has more than one whole variable beside the shards.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cached_property

import jax
import keras
import numpy as np

from runner.data.base import Array
from runner.engine.jax import private
from runner.engine.jax.shards import placed_in_parts
from runner.model.stored import StoredValue


class FirstValue:
    """The value that a variable has after its build, or that its initializer draws when it is read."""

    def __init__(self, variable: keras.Variable) -> None:
        self._draw = private.take_value(variable)
        self.shape = tuple(variable.shape)

    @cached_property
    def _whole(self) -> Array:
        return np.asarray(self._draw())

    def read(self, index: tuple[slice, ...]) -> Array:
        """Returns a part, without a copy."""
        return self._whole[index]


def placed(values: dict[str, StoredValue], kinds: Mapping[str, jax.ShapeDtypeStruct]) -> dict[str, jax.Array]:
    """Returns initial values by path on the devices; empties the mapping, as each is released when it is placed."""
    arrays = {}
    # The largest variables come first, while the devices are empty: the temporaries of a random generator are several
    # times the size of its result.
    for path in sorted(kinds, key=lambda path: math.prod(kinds[path].shape), reverse=True):
        value = values.pop(path)
        arrays[path] = placed_in_parts(value.read, kinds[path])
    return arrays

"""What of a built Keras 3 model begins otherwise than its builder drew it, and what of it is trained."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Protocol

import keras
import numpy as np

from runner.config.errors import refuse
from runner.data.base import Array
from runner.engine.jax import private
from runner.engine.jax.names import Names

ATTRIBUTE = "initial_values"  # of a model: id of a variable -> its value


class Stored(Protocol):
    """A whole value that need not lie in memory."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the whole."""
        ...

    def read(self, index: tuple[slice, ...]) -> Array:
        """Returns a part of it, one slice a dim."""
        ...


class Held(np.ndarray):  # type: ignore[type-arg]
    """An array as a `Stored`."""

    def read(self, index: tuple[slice, ...]) -> Array:
        """Returns a part of it."""
        return np.asarray(self)[index]


def initial_values(model: keras.Model) -> Mapping[str, Stored]:
    """Returns the values that a model's variables begin with in place of those that were drawn, by canonical path.

    A builder that reads weights leaves them in the attribute `initial_values` of its model, by id of the variable, so
    that each process reads the parts that its devices hold.
    """
    held: Mapping[int, Stored | Array] = getattr(model, ATTRIBUTE, {})
    return {
        path: value.view(Held) if isinstance(value, np.ndarray) else value
        for path, variable in Names(model).variables.items()
        if (value := held.get(id(variable))) is not None
    }


def train_alone(model: keras.Model, patterns: Sequence[str]) -> None:
    """Freezes what no pattern catches; a layer of which nothing is left is frozen whole, as `layer.trainable=False`.

    So a batch normalisation that is not trained computes with its moving averages, as Keras's does.

    Args:
      model: built.
      patterns: regular expressions on the whole of canonical paths.

    Raises:
      ConfigError: a pattern is no regular expression, or catches no trainable variable.
    """
    paths = {id(variable): path for path, variable in Names(model).variables.items()}
    free = {id(variable): paths[id(variable)] for variable in model.trainable_variables}
    chosen: set[int] = set()
    for place, pattern in enumerate(patterns):
        found = {key for key, path in free.items() if re.fullmatch(pattern, path)}
        if not found:
            raise refuse(
                f"model.trainable[{place}]",
                pattern,
                allowed=f"a pattern of the whole of paths, as {_some(list(free.values()))}",
                mend="python -m runner.plan lists them",
            )
        chosen |= found
    for layer in private.all_layers(model):
        own = [variable for variable in layer.weights if id(variable) in free]
        if own and not any(id(variable) in chosen for variable in own):
            layer.trainable = False
    for variable in model.trainable_variables:
        if id(variable) not in chosen:
            variable.trainable = False


def _some(paths: Sequence[str]) -> str:
    return ", ".join(paths[:: max(1, len(paths) // 4)][:4])

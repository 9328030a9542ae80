"""What of a built Keras 3 model is trained, by patterns of its variables' paths."""

from __future__ import annotations

import re
from collections.abc import Sequence

import keras

from runner.engine.jax import private
from runner.engine.jax.names import Names
from runner.errors import invalid


def train_alone(model: keras.Model, patterns: Sequence[str]) -> None:
    """Freezes what no pattern catches; a layer of which nothing is left is frozen whole, as `layer.trainable=False`.

    So a batch normalization that is not trained computes with its moving averages, as Keras's does; one that has
    nothing to train is, where no pattern catches its averages.

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
            raise invalid(
                f"model.trainable[{place}]",
                pattern,
                problem=f"a pattern of the whole of paths, as {_some(list(free.values()))}",
                fix="python -m runner.plan lists them",
            )
        chosen |= {key for key, path in paths.items() if re.fullmatch(pattern, path)}
    for layer in private.all_layers(model):
        own = [variable for variable in layer.weights if id(variable) in free] or layer.weights
        if own and not any(id(variable) in chosen for variable in own):
            layer.trainable = False
    for variable in model.trainable_variables:
        if id(variable) not in chosen:
            variable.trainable = False


def _some(paths: Sequence[str]) -> str:
    return ", ".join(paths[:: max(1, len(paths) // 4)][:4])

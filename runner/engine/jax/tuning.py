"""Freezes the variables that `model.trainable` does not name."""

from __future__ import annotations

import re
from collections.abc import Sequence

import keras

from runner.engine.jax import private
from runner.engine.jax.names import Names
from runner.engine.mappings import keys_by_id, subset
from runner.errors import invalid


def freeze_others(model: keras.Model, patterns: Sequence[str]) -> None:
    """Freezes variables that no pattern matches.

    A layer with no trained variable left gets `trainable=False`.

    A frozen batch normalization then computes with its moving averages, as Keras's does. One without variables to
    train is frozen unless a pattern matches its averages.

    Args:
      model: built.
      patterns: regular expressions that match whole canonical paths.

    Raises:
      ConfigError: a pattern matches no trainable variable.
    """
    paths = keys_by_id(Names(model).variables)
    trainable = subset(paths, map(id, model.trainable_variables))
    matched: set[int] = set()
    for place, pattern in enumerate(patterns):
        pattern_ids = [key for key, path in paths.items() if re.fullmatch(pattern, path)]
        # A pattern may match statistics too, but by itself they are not trained.
        if trainable.keys().isdisjoint(pattern_ids):
            raise invalid(
                f"model.trainable[{place}]",
                pattern,
                problem=f"must match a whole variable path, such as {_examples(list(trainable.values()))}",
                fix="list them with python -m runner.plan",
            )
        matched.update(pattern_ids)
    # Whole layers first: `trainable=False` also changes what a layer such as batch normalization computes.
    for layer in private.all_layers(model):
        variables = [variable for variable in layer.weights if id(variable) in trainable] or layer.weights
        if variables and matched.isdisjoint(map(id, variables)):
            layer.trainable = False
    for variable in model.trainable_variables:
        if id(variable) not in matched:
            variable.trainable = False


def _examples(paths: Sequence[str]) -> str:
    """Returns four paths, spread over all of them."""
    stride = max(1, len(paths) // 4)
    return ", ".join(paths[::stride][:4])

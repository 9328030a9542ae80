"""Canonical paths of a tf_keras model's layers and variables."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import tensorflow as tf
import tf_keras

from runner.engine.dtensor.private import attributes, is_functional
from runner.engine.layer_notes import layer_path


def named_variables(model: tf_keras.Model) -> dict[str, tf.Variable]:
    """Returns canonical path -> variable in the model's own order of weights.

    A layer of a Sequential or functional model has its name as path, with slashes for dots; one of a subclassed model
    has its attribute path; a nested functional model adds nothing to the path. If two variables would have one path,
    such as layers of one name in two nested models, the nested models' names come first for both. A variable that no
    attribute refers to has its own name.
    """
    short_paths: dict[int, str] = {}
    full_paths: dict[int, str] = {}
    for short, full, variable in _walk(model, ""):
        short_paths.setdefault(id(variable), short)
        full_paths.setdefault(id(variable), full)
    for variable in model.weights:
        own_name = layer_path(variable.name.removesuffix(":0"))
        short_paths.setdefault(id(variable), own_name)
        full_paths.setdefault(id(variable), own_name)
    counts = Counter(short_paths[id(variable)] for variable in model.weights)
    variables: dict[str, tf.Variable] = {}
    for variable in model.weights:
        path = short_paths[id(variable)]
        if counts[path] > 1:
            path = full_paths[id(variable)]
        # Two variables that still have one path are rejected when paths are checked, see `runner.model.contract`.
        variables.setdefault(path, variable)
    return variables


def _walk(model: tf_keras.layers.Layer, outer: str) -> Iterator[tuple[str, str, tf.Variable]]:
    """Yields (path, path with the names of nested models, variable)."""
    if not is_functional(model):
        yield from _of_layer(model, "", outer)
        return
    for layer in model.layers:
        prefix = f"{layer_path(layer.name)}/"
        if is_functional(layer):
            yield from _walk(layer, outer + prefix)
        else:
            yield from _of_layer(layer, prefix, outer + prefix)


def _of_layer(owner: tf_keras.layers.Layer, prefix: str, outer: str) -> Iterator[tuple[str, str, tf.Variable]]:
    for path, nested in attributes(owner, tf_keras.Model):
        if nested is not owner and is_functional(nested):
            for short, full, variable in _walk(nested, ""):
                yield f"{prefix}{path}/{short}", f"{outer}{path}/{full}", variable
    for path, variable in attributes(owner, tf.Variable):
        yield prefix + path, outer + path, variable


def layer_paths(model: tf_keras.Model) -> dict[int, str]:
    """Returns id of layer -> canonical path, the attribute path for layers inside a subclassed model."""
    if is_functional(model):
        return {}
    paths: dict[int, str] = {}
    for path, layer in attributes(model, tf_keras.layers.Layer):
        # A layer that several attributes refer to has the path of the first.
        paths.setdefault(id(layer), path)
    return paths

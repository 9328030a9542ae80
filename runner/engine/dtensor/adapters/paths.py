"""Canonical paths of a tf_keras model's layers and variables."""

from __future__ import annotations

from collections.abc import Iterator

import tensorflow as tf
import tf_keras

from runner.engine.dtensor.private import attributes, is_functional


def named_variables(model: tf_keras.Model) -> dict[str, tf.Variable]:
    """Returns canonical path to variable, `layer/variable`, in the model's own order of weights.

    A layer of a Sequential or functional model goes by its name, with slashes for dots; one of a subclassed model by
    its attribute path; a nested functional model adds nothing to the path, as in tf_keras's LayoutMap.
    """
    paths: dict[int, str] = {}
    for path, variable in _walk(model):
        paths.setdefault(id(variable), path)
    return {paths[id(variable)]: variable for variable in model.weights}


def _walk(model: tf_keras.Model) -> Iterator[tuple[str, tf.Variable]]:
    functional = is_functional(model)
    for owner in model.layers if functional else [model]:
        if functional and is_functional(owner):
            yield from _walk(owner)
            continue
        prefix = f"{layer_path(owner.name)}/" if functional else ""
        for path, variable in attributes(owner, tf.Variable):
            yield prefix + path, variable


def layer_path(name: str) -> str:
    """Returns a layer's canonical path: `block_0/mlp/up` of `block_0.mlp.up`; Keras 3 allows no slash in names."""
    return name.replace(".", "/")


def layer_paths(model: tf_keras.Model) -> dict[int, str]:
    """Returns id of layer -> canonical path, for layers inside a subclassed model its attribute path."""
    if is_functional(model):
        return {}
    return {id(layer): path for path, layer in reversed(list(attributes(model, tf_keras.layers.Layer)))}

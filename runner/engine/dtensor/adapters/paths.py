"""Canonical paths of a tf_keras model's layers and variables."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import tensorflow as tf
import tf_keras

from runner.engine.dtensor.private import attributes, is_functional
from runner.engine.layer_notes import layer_path


def named_variables(model: tf_keras.Model) -> dict[str, tf.Variable]:
    """Returns canonical path to variable, `layer/variable`, in the model's own order of weights.

    A layer of a Sequential or functional model goes by its name, with slashes for dots; one of a subclassed model by
    its attribute path; a nested functional model adds nothing to the path. Where two variables would so have one path,
    as layers of one name in two nested models, the nested models' names come first for both. A variable that no
    attribute holds goes by its own name.
    """
    short: dict[int, str] = {}
    full: dict[int, str] = {}
    for path, whole, variable in _walk(model, ""):
        short.setdefault(id(variable), path)
        full.setdefault(id(variable), whole)
    for variable in model.weights:
        own = layer_path(variable.name.removesuffix(":0"))
        short.setdefault(id(variable), own)
        full.setdefault(id(variable), own)
    count = Counter(short[id(variable)] for variable in model.weights)
    found: dict[str, tf.Variable] = {}
    for variable in model.weights:
        path = short[id(variable)]
        path = full[id(variable)] if count[path] > 1 else path
        if path not in found:  # what is left over is refused where paths are checked, see `runner.model.contract`
            found[path] = variable
    return found


def _walk(model: tf_keras.layers.Layer, outer: str) -> Iterator[tuple[str, str, tf.Variable]]:
    """Yields (path, path with the names of nested models in it, variable)."""
    if not is_functional(model):
        yield from _held(model, "", outer)
        return
    for owner in model.layers:
        own = f"{layer_path(owner.name)}/"
        yield from _walk(owner, outer + own) if is_functional(owner) else _held(owner, own, outer + own)


def _held(owner: tf_keras.layers.Layer, prefix: str, outer: str) -> Iterator[tuple[str, str, tf.Variable]]:
    """Yields what the attributes of a layer hold; of a functional model among them, its layers by their names."""
    for path, nested in attributes(owner, tf_keras.Model):
        if nested is not owner and is_functional(nested):
            for short, whole, variable in _walk(nested, ""):
                yield f"{prefix}{path}/{short}", f"{outer}{path}/{whole}", variable
    for path, variable in attributes(owner, tf.Variable):
        yield prefix + path, outer + path, variable


def layer_paths(model: tf_keras.Model) -> dict[int, str]:
    """Returns id of layer -> canonical path, for layers inside a subclassed model its attribute path."""
    if is_functional(model):
        return {}
    return {id(layer): path for path, layer in reversed(list(attributes(model, tf_keras.layers.Layer)))}

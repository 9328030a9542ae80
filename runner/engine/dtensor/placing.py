"""Puts a plain model on a mesh: every variable gets its layout, wherever the model's objects refer to it."""

from __future__ import annotations

import functools
import operator
from collections.abc import Mapping
from typing import Any

import tensorflow as tf
from tensorflow.experimental import dtensor

from runner.engine.dtensor.arrays import pack
from runner.engine.dtensor.private import Node
from runner.engine.mappings import map_values


class PlacedVariable(dtensor.DVariable):  # type: ignore[misc]
    """A model's variable on a mesh. DTensor can't gather from a variable, so it gathers from its value."""

    def sparse_read(self, indices: tf.Tensor, name: str | None = None) -> tf.Tensor:
        """Returns rows of the value, as an embedding layer reads them."""
        return tf.gather(tf.identity(self.value()), indices, name=name)

    def gather_nd(self, indices: tf.Tensor, name: str | None = None) -> tf.Tensor:
        """Returns elements of the value."""
        return tf.gather_nd(tf.identity(self.value()), indices, name=name)


def place(
    model: tf.Module, variables: Mapping[str, tf.Variable], layouts: Mapping[str, dtensor.Layout], mesh: dtensor.Mesh
) -> None:
    """Replaces a plain model's variables by zeros under their layouts, and its constants by replicated ones."""
    replacements = {}
    for path, variable in variables.items():
        value = dtensor.call_with_layout(tf.zeros, layouts[path], shape=variable.shape, dtype=variable.dtype)
        name = variable.name.removesuffix(":0")
        replacements[id(variable)] = PlacedVariable(value, trainable=variable.trainable, name=name)
    _Exchange(replacements, mesh).walk(model)


class _Exchange:
    """A walk over a model's objects that exchanges its variables and constants."""

    def __init__(self, replacements: Mapping[int, tf.Variable], mesh: dtensor.Mesh) -> None:
        self._replacements = replacements
        self._mesh = mesh
        self._seen: set[int] = set()
        self._waiting: list[object] = []

    def walk(self, root: tf.Module) -> None:
        """Exchanges the attributes of the root, and of the objects that it refers to."""
        self._waiting.append(root)
        while self._waiting:
            owner = self._waiting.pop()
            if id(owner) in self._seen:
                continue
            self._seen.add(id(owner))
            for name, value in list(vars(owner).items()):
                new = self._exchanged(value)
                if new is not value:
                    # Not by setattr: Keras would track the new variable in addition to the old one.
                    vars(owner)[name] = new

    def _exchanged(self, value: Any) -> Any:
        """Returns the replacement of a value, mostly itself; containers are changed in place."""
        if id(value) in self._replacements:
            return self._replacements[id(value)]
        if isinstance(value, tf.Variable):
            return value
        if isinstance(value, tf.Tensor):
            return self._constant(value)
        if isinstance(value, tf.Module | Node):
            self._waiting.append(value)
        elif isinstance(value, functools.partial):
            arguments = list(map(self._exchanged, value.args))
            keywords = map_values(self._exchanged, value.keywords)
            return functools.partial(self._exchanged(value.func), *arguments, **keywords)
        elif isinstance(value, list | dict) and id(value) not in self._seen:
            self._seen.add(id(value))
            if isinstance(value, list):
                self._exchange_list(value)
            else:
                self._exchange_dict(value)
        elif type(value) is tuple:
            new = tuple(map(self._exchanged, value))
            # Returned itself if nothing changed, so that the owner's attribute is not set in vain.
            if any(map(operator.is_not, new, value)):
                return new
        return value

    def _exchange_list(self, values: list[Any]) -> None:
        # A list that Keras tracks has its items twice, in itself and in `_storage`. The methods of `list` itself
        # bypass the tracking.
        for items in (values, getattr(values, "_storage", values)):
            for index, item in enumerate(list(list.__iter__(items))):
                list.__setitem__(items, index, self._exchanged(item))

    def _exchange_dict(self, values: dict[Any, Any]) -> None:
        # A dict that Keras tracks is a wrapper of a plain one.
        items = getattr(values, "__wrapped__", values)
        for key, item in list(items.items()):
            items[key] = self._exchanged(item)

    def _constant(self, value: tf.Tensor) -> tf.Tensor:
        """Returns a layer's constant replicated: DTensor accepts no tensor of one device in a step."""
        is_eager = hasattr(value, "numpy")
        dtype = value.dtype
        if not is_eager or not (dtype.is_floating or dtype.is_integer or dtype.is_bool):
            return value
        return pack(value.numpy(), dtensor.Layout.replicated(self._mesh, value.shape.rank))

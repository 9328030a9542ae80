"""Puts a plain model on a mesh: every variable gets its layout, wherever the model's objects hold it."""

from __future__ import annotations

import functools
import types
from collections.abc import Mapping
from typing import Any

import tensorflow as tf
from tensorflow.experimental import dtensor

from runner.engine.dtensor.arrays import pack
from runner.engine.dtensor.private import Node, recast, uncast


class PlacedVariable(dtensor.DVariable):  # type: ignore[misc]
    """A model's variable on a mesh. DTensor has no rule for a gather from a variable: its value is gathered from."""

    def sparse_read(self, indices: tf.Tensor, name: str | None = None) -> tf.Tensor:
        """Returns rows of the value, as an embedding layer reads them."""
        return tf.gather(tf.identity(self.value()), indices, name=name)

    def gather_nd(self, indices: tf.Tensor, name: str | None = None) -> tf.Tensor:
        """Returns elements of the value."""
        return tf.gather_nd(tf.identity(self.value()), indices, name=name)


def place(
    model: tf.Module, variables: Mapping[str, tf.Variable], layouts: Mapping[str, dtensor.Layout], mesh: dtensor.Mesh
) -> None:
    """Replaces the variables of a plain model by such of zeros under their layouts, and its constants by whole ones.

    Args:
      model: plain; its objects are changed.
      variables: all of the model's, by canonical path.
      layouts: by canonical path.
      mesh: DTensor mesh.
    """
    made = {}
    for path, variable in variables.items():
        plain = uncast(variable)
        value = dtensor.call_with_layout(tf.zeros, layouts[path], shape=plain.shape, dtype=plain.dtype)
        name = plain.name.removesuffix(":0")
        new = PlacedVariable(value, trainable=plain.trainable, name=name, constraint=plain.constraint)
        made[id(variable)] = recast(variable, new)
    _Exchange(made, mesh).walk(model)


class _Exchange:
    """A walk over all that a model's objects hold."""

    def __init__(self, made: Mapping[int, tf.Variable], mesh: dtensor.Mesh) -> None:
        self._made = made
        self._mesh = mesh
        self._seen: set[int] = set()
        self._waiting: list[object] = []

    def walk(self, root: tf.Module) -> None:
        """Exchanges what the root holds, and what that holds."""
        self._waiting.append(root)
        while self._waiting:
            owner = self._waiting.pop()
            if id(owner) in self._seen:
                continue
            self._seen.add(id(owner))
            for name, value in list(vars(owner).items()):
                new = self._new(value)
                if new is not value:
                    vars(owner)[name] = new  # not by setattr: Keras would track the new variable once more

    def _new(self, value: Any) -> Any:
        """Returns what comes in the place of a value: mostly itself; containers are changed in place."""
        if id(value) in self._made:
            return self._made[id(value)]
        if isinstance(value, tf.Variable):
            return value
        if isinstance(value, tf.Tensor):
            return self._constant(value)
        if isinstance(value, tf.Module | Node):
            self._waiting.append(value)
        elif isinstance(value, functools.partial):
            return functools.partial(
                self._new(value.func),
                *(self._new(each) for each in value.args),
                **{key: self._new(each) for key, each in value.keywords.items()},
            )
        elif isinstance(value, types.FunctionType):
            for cell in value.__closure__ or ():
                if id(_content(cell)) in self._made:
                    cell.cell_contents = self._made[id(cell.cell_contents)]
        elif isinstance(value, list) and id(value) not in self._seen:
            self._seen.add(id(value))
            for items in (value, getattr(value, "_storage", value)):  # a tracked list holds its items twice
                for index, each in enumerate(list(list.__iter__(items))):
                    list.__setitem__(items, index, self._new(each))
        elif isinstance(value, dict) and id(value) not in self._seen:
            self._seen.add(id(value))
            items = getattr(value, "__wrapped__", value)  # a tracked dict stands before a plain one
            for key, each in list(items.items()):
                items[key] = self._new(each)
        elif type(value) is tuple:
            new = tuple(self._new(each) for each in value)
            return new if any(a is not b for a, b in zip(new, value, strict=True)) else value
        return value

    def _constant(self, value: tf.Tensor) -> tf.Tensor:
        """Returns a layer's constant whole on every device: DTensor takes no tensor of one device into a step."""
        if not hasattr(value, "numpy") or not (
            value.dtype.is_floating or value.dtype.is_integer or value.dtype.is_bool
        ):
            return value
        return pack(value.numpy(), dtensor.Layout.replicated(self._mesh, value.shape.rank))


def _content(cell: types.CellType) -> object:
    try:
        return cell.cell_contents
    except ValueError:  # empty as yet
        return None

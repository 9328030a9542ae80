"""Canonical paths of the layers and variables of Keras 3 models."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import keras

from runner.engine.jax import private
from runner.engine.layer_notes import layer_path
from runner.errors import ConfigError


@dataclass(frozen=True)
class _Paths:
    """Two paths of one layer or variable: without the names of nested functional models, and with them."""

    short: str
    full: str

    def child(self, name: object) -> _Paths:
        return _Paths(f"{self.short}/{name}", f"{self.full}/{name}")


class Names:
    """Canonical paths of a model's layers and variables, the same as those of tf_keras in the DTensor engine.

    A layer of a Sequential or functional model goes by its name, with slashes for dots; one of a subclassed model by
    its attribute path; a nested functional model adds nothing to the path. If two variables or two layers would share
    a path, such as those of one name in two nested models, the nested models' names come first for both. In a model
    with a part of KerasHub's, all go by Keras's own paths, which KerasHub's users know.

    Attributes:
      layers: id of a layer -> path.
      variables: path -> Keras variable, in the model's own order of weights.
    """

    def __init__(self, model: keras.Model) -> None:
        self._layers: dict[int, _Paths] = {}
        self._variables: dict[int, _Paths] = {}
        self._walked: set[int] = set()
        self._walk(model, "", "")
        if private.has_keras_hub_layer(model):
            self._use_keras_paths(model)
        self.layers = _unique(self._layers)
        variable_paths = {}
        for variable in model.weights:
            keras_path = _Paths(variable.path, variable.path)
            variable_paths[id(variable)] = self._variables.get(id(variable), keras_path)
        paths = _unique(variable_paths)
        self.variables: dict[str, keras.Variable] = {}
        for variable in model.weights:
            path = paths[id(variable)]
            if path in self.variables:
                raise ConfigError(f"model._target_: two variables are named {path}; give the layers different names")
            self.variables[path] = variable

    def _use_keras_paths(self, model: keras.Model) -> None:
        """Replaces the short paths by Keras's own; the full paths stay those of the walk."""
        for layer in private.all_layers(model):
            if layer.path is not None:
                walked = self._layers.get(id(layer), _Paths("", layer.path))
                self._layers[id(layer)] = _Paths(layer.path, walked.full)
        for variable in model.weights:
            walked = self._variables.get(id(variable), _Paths("", variable.path))
            self._variables[id(variable)] = _Paths(variable.path, walked.full)

    def _walk(self, owner: keras.Layer, short: str, full: str) -> None:
        if id(owner) in self._walked:
            return
        self._walked.add(id(owner))
        if private.is_functional(owner):
            for layer in owner.layers:
                # A layer that is used in several models keeps the path under which it is met first.
                name = layer_path(layer.name)
                # A nested functional model adds nothing to the short path.
                prefix = short
                if not private.is_functional(layer):
                    prefix = f"{short}{name}/"
                self._layers.setdefault(id(layer), _Paths(prefix.removesuffix("/") or name, f"{full}{name}"))
                self._walk(layer, prefix, f"{full}{name}/")
            return
        # Sorted by name: a variable that two attributes hold has one path, in whatever order they were assigned.
        for name, value in sorted(vars(owner).items()):
            if name not in private.BOOKKEEPING:
                self._note(value, _Paths(f"{short}{name}", f"{full}{name}"))

    def _note(self, value: object, paths: _Paths) -> None:
        """Notes what an attribute holds: a variable, a layer, or a list or dict of them."""
        if isinstance(value, keras.Variable):
            self._variables.setdefault(id(value), _without_underscore(paths, value.name))
        elif isinstance(value, keras.Layer):
            self._layers.setdefault(id(value), paths)
            self._walk(value, f"{paths.short}/", f"{paths.full}/")
        elif isinstance(value, list | tuple | dict):
            items: Iterable[tuple[object, object]] = enumerate(value)
            if isinstance(value, dict):
                items = value.items()
            for key, item in items:
                self._note(item, paths.child(key))


def _without_underscore(paths: _Paths, name: str) -> _Paths:
    """Returns a variable's paths with its name for `_<name>`. Some layers hide a variable behind a property."""
    hidden = f"_{name}"
    if paths.short.rpartition("/")[2] != hidden:
        return paths
    return _Paths(paths.short.removesuffix(hidden) + name, paths.full.removesuffix(hidden) + name)


def _unique(paths: Mapping[int, _Paths]) -> dict[int, str]:
    """Returns the short path of each, or the full path if the short one is taken."""
    count = Counter(path.short for path in paths.values())
    names = {}
    for key, path in paths.items():
        names[key] = path.short
        if count[path.short] > 1:
            names[key] = path.full
    return names

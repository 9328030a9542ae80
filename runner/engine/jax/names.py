"""Canonical paths of the layers and variables of Keras 3 models."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import keras

from runner.engine.jax import private
from runner.engine.layer_notes import layer_path
from runner.errors import ConfigError


class Names:
    """Canonical paths of a model's layers and variables, the same as tf_keras's models have in the DTensor engine.

    A layer of a Sequential or functional model goes by its name, with slashes for dots; one of a subclassed model by
    its attribute path; a nested functional model adds nothing to the path. Where two variables or two layers would so
    have one path, as those of one name in two nested models, the nested models' names come first for both.

    In a model with a part of KerasHub's all go by Keras's own paths, which KerasHub's users know.

    Attributes:
      layers: id of a layer -> path.
      variables: path -> Keras variable, in the model's own order of weights.
    """

    def __init__(self, model: keras.Model) -> None:
        """Walks the model.

        Raises:
          ConfigError: two variables have one path, as layers of one name in one model give.
        """
        # Of each: its path, and the path with the names of nested models in it.
        self._layers: dict[int, tuple[str, str]] = {}
        self._variables: dict[int, tuple[str, str]] = {}
        self._seen: set[int] = set()
        self._walk(model, "", "")
        if private.has_hub(model):
            self._take_own(model)
        self.layers = _apart(self._layers)
        paths = _apart({id(each): self._variables.get(id(each), (each.path, each.path)) for each in model.weights})
        self.variables: dict[str, keras.Variable] = {}
        for variable in model.weights:
            path = paths[id(variable)]
            if path in self.variables:
                raise ConfigError(f"model._target_: two variables are named {path}; name layers apart")
            self.variables[path] = variable

    def _take_own(self, model: keras.Model) -> None:
        """Takes Keras's own paths in place of those that were walked; where two are the same, each with the walked."""
        for layer in private.all_layers(model):
            if layer.path is not None:
                self._layers[id(layer)] = (layer.path, self._layers.get(id(layer), ("", layer.path))[1])
        for variable in model.weights:
            whole = self._variables.get(id(variable), ("", variable.path))[1]
            self._variables[id(variable)] = (variable.path, whole)

    def _walk(self, owner: keras.Layer, prefix: str, outer: str) -> None:
        if id(owner) in self._seen:
            return
        self._seen.add(id(owner))
        if private.is_functional(owner):
            for layer in owner.layers:
                name = layer_path(layer.name)
                path = prefix if private.is_functional(layer) else f"{prefix}{name}/"
                self._layers.setdefault(id(layer), (path.removesuffix("/") or name, f"{outer}{name}"))
                self._walk(layer, path, f"{outer}{name}/")
            return
        for name, value in sorted(vars(owner).items()):
            if name not in private.BOOKKEEPING:
                self._take(value, f"{prefix}{name}", f"{outer}{name}")

    def _take(self, value: object, path: str, whole: str) -> None:
        """Notes what an attribute holds: a variable, a layer, or a list or dict of them."""
        if isinstance(value, keras.Variable):
            # Some layers hold a variable in a private attribute, behind a property of the variable's name.
            hidden = path.rpartition("/")[2] == f"_{value.name}"
            both = ((each.removesuffix(f"_{value.name}") + value.name) if hidden else each for each in (path, whole))
            self._variables.setdefault(id(value), (next(both), next(both)))
        elif isinstance(value, keras.Layer):
            self._layers.setdefault(id(value), (path, whole))
            self._walk(value, f"{path}/", f"{whole}/")
        elif isinstance(value, list | tuple | dict):
            for key, item in value.items() if isinstance(value, dict) else enumerate(value):
                self._take(item, f"{path}/{key}", f"{whole}/{key}")


def _apart(paths: Mapping[int, tuple[str, str]]) -> dict[int, str]:
    """Returns the first of each pair of paths, and the second where others have the same first."""
    count = Counter(path for path, _ in paths.values())
    return {key: whole if count[path] > 1 else path for key, (path, whole) in paths.items()}

"""Canonical paths of the layers and variables of Keras 3 models."""

from __future__ import annotations

import keras

from runner.config.errors import ConfigError
from runner.engine.jax import private


class Names:
    """Canonical paths of a model's layers and variables, the same as tf_keras's models have in the DTensor engine.

    A layer of a Sequential or functional model goes by its name, with slashes for dots; one of a subclassed model by
    its attribute path; a nested functional model adds nothing to the path.

    Attributes:
      layers: id of a layer -> path.
      variables: path -> Keras variable, in the model's own order of weights.
    """

    def __init__(self, model: keras.Model) -> None:
        """Walks the model.

        Raises:
          ConfigError: two variables have one path, as layers of one name in nested models give.
        """
        self.layers: dict[int, str] = {}
        self._paths: dict[int, str] = {}
        self._seen: set[int] = set()
        self._walk(model, "")
        self.variables: dict[str, keras.Variable] = {}
        for variable in model.weights:
            path = self._paths.get(id(variable), variable.path)
            if path in self.variables:
                raise ConfigError(f"model._target_ is refused: two variables are named {path}; name layers apart")
            self.variables[path] = variable

    def _walk(self, owner: keras.Layer, prefix: str) -> None:
        if id(owner) in self._seen:
            return
        self._seen.add(id(owner))
        if private.is_functional(owner):
            for layer in owner.layers:
                path = prefix if private.is_functional(layer) else f"{prefix}{layer_path(layer.name)}/"
                self.layers.setdefault(id(layer), path.removesuffix("/") or layer_path(layer.name))
                self._walk(layer, path)
            return
        for name, value in sorted(vars(owner).items()):
            if name not in private.BOOKKEEPING:
                self._take(value, f"{prefix}{name}")

    def _take(self, value: object, path: str) -> None:
        """Notes what an attribute holds: a variable, a layer, or a list or dict of them."""
        if isinstance(value, keras.Variable):
            folder, slash, name = path.rpartition("/")
            # Some layers hold a variable in a private attribute, behind a property of the variable's name.
            name = value.name if name == f"_{value.name}" else name
            self._paths.setdefault(id(value), f"{folder}{slash}{name}")
        elif isinstance(value, keras.Layer):
            self.layers.setdefault(id(value), path)
            self._walk(value, f"{path}/")
        elif isinstance(value, list | tuple):
            for index, item in enumerate(value):
                self._take(item, f"{path}/{index}")
        elif isinstance(value, dict):
            for key, item in value.items():
                self._take(item, f"{path}/{key}")


def layer_path(name: str) -> str:
    """Returns a layer's canonical path: `block_0/mlp/up` of `block_0.mlp.up`."""
    return name.replace(".", "/")

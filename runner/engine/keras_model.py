"""tf_keras models on a mesh: canonical variable names, and one builder call for plain and for sharded variables."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from runner.engine.base import DataSpec
from runner.errors import ConfigError, EngineError
from runner.model import target
from runner.schema import ModelConfig

_SKIP = ("_self_tracked_trackables", "_trainable_weights", "_non_trainable_weights", "_captured_weight_regularizer")


def named_variables(model: Any) -> dict[str, Any]:
    """Returns canonical path to variable, `layer/variable`, in the model's own order of weights.

    A layer of a Sequential or functional model goes by its name, one of a subclassed model by its attribute path;
    a nested functional model adds nothing to the path, as in tf_keras's LayoutMap.
    """
    paths: dict[int, str] = {}
    for path, variable in _walk(model):
        paths.setdefault(id(variable), path)
    return {paths[id(variable)]: variable for variable in model.weights}


def _walk(model: Any) -> Iterator[tuple[str, Any]]:
    import tensorflow as tf

    functional = _is_functional(model)
    for owner in model.layers if functional else [model]:
        if functional and _is_functional(owner):
            yield from _walk(owner)
            continue
        for path, variable in owner._flatten(predicate=lambda item: isinstance(item, tf.Variable), with_path=True):
            if not any(skipped in path for skipped in _SKIP):
                prefix = f"{owner.name}/" if functional else ""
                yield prefix + "/".join(str(part) for part in path), variable


def _is_functional(model: Any) -> bool:
    import tf_keras

    return isinstance(model, tf_keras.Sequential) or getattr(model, "_is_graph_network", False)


class ModelFactory:
    """Calls a config's builder, for a plain model and for one on a mesh, from the same seed."""

    def __init__(self, config: ModelConfig, data: DataSpec, seed: int) -> None:
        self._config, self._data, self._seed = config, data, seed
        self._builder = target.load(config.target)
        self._takes_layouts = target.LAYOUTS in _parameters(self._builder)

    def plain(self) -> Any:
        """Returns the model on one device, without layouts; its initial weights depend on the seed alone.

        Raises:
          ConfigError: the builder raised, or returned something that is not a built model.
        """
        model = self._call({})
        if not model.built:
            model(self._symbolic_input())
        return model

    def on_mesh(self, mesh: Any, layouts: Mapping[str, Any]) -> Any:
        """Returns the model with every variable made under its layout.

        Args:
          mesh: DTensor mesh.
          layouts: canonical path -> DTensor layout, for every variable.
        """
        import tf_keras

        if self._takes_layouts:
            return self._call(layouts)
        layout_map = tf_keras.dtensor.experimental.LayoutMap(mesh=mesh)
        for path, layout in layouts.items():
            layout_map[path.replace("/", ".")] = layout  # a key equal to the path is taken before any pattern
        with layout_map.scope():
            model = self._call({})
            if not _is_functional(model):
                self._map_subclassed(model, layout_map)
        return model

    def _call(self, layouts: Mapping[str, Any]) -> Any:
        import tf_keras

        tf_keras.backend.reset_uids()  # unnamed layers get the same names at every call
        tf_keras.utils.set_random_seed(self._seed)
        extra = {target.LAYOUTS: layouts} if self._takes_layouts else {}
        try:
            model = self._builder(
                keras=tf_keras,
                input_shape=self._data.input_shape,
                num_classes=self._data.num_classes,
                **self._config.options,
                **extra,
            )
        except Exception as error:  # whatever a builder raises is the config's fault, and goes into one line
            reason = " ".join(f"{type(error).__name__}: {error}".split())
            raise ConfigError(
                f"model._target_={self._config.target} is refused: the builder raised {reason}"
            ) from error
        if not isinstance(model, tf_keras.Model):
            raise ConfigError(
                f"model._target_={self._config.target} is refused: a builder returns a keras.Model made with the "
                f"`keras` it is given (tf_keras), this one returned {type(model).__name__}"
            )
        return model

    def _symbolic_input(self) -> Any:
        import tf_keras

        return tf_keras.Input(self._data.input_shape)

    def _map_subclassed(self, model: Any, layout_map: Any) -> None:
        """Gives a subclassed model its variables: a symbolic call makes them, tf_keras's own mapper places them.

        The model's ordinary first call would hand DTensor inputs with one dim too many to the layers.
        """
        from tf_keras.src.dtensor import layout_map as internal
        from tf_keras.src.engine import base_layer

        base_layer.Layer.__call__(model, self._symbolic_input())
        internal._map_subclass_model_variable(model, layout_map)


def _parameters(builder: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    try:
        return inspect.signature(builder).parameters
    except (TypeError, ValueError):
        return {}


def check_layouts(variables: Mapping[str, Any], layouts: Mapping[str, Any]) -> None:
    """Checks that every variable lies as the plan says.

    Raises:
      EngineError: names the first that does not.
    """
    for path, variable in variables.items():
        if variable.layout != layouts[path]:
            raise EngineError(f"variable {path} lies as {variable.layout}, the plan says {layouts[path]}")

"""tf_keras models on a mesh: canonical variable names, and one builder call for plain and for sharded variables."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from contextlib import nullcontext
from types import ModuleType
from typing import Any

import tensorflow as tf
import tf_keras
from tensorflow.experimental import dtensor

from runner.config.errors import ConfigError
from runner.config.schema import ModelConfig, RunConfig
from runner.data.base import Array
from runner.engine.base import DataSpec, LayerOutput
from runner.engine.dtensor import private
from runner.engine.dtensor.adapters.layer_outputs import layer_outputs
from runner.engine.dtensor.adapters.paths import named_variables
from runner.engine.dtensor.layers import Dropout, dtensor_keras, whole_variables
from runner.model import target
from runner.model.builder import call as build_model
from runner.model.builder import check_kind, check_paths, given, parameters, refuse_padding


class KerasAdapter:
    """Calls a config's builder, for a plain model and for one on a mesh, from the same seed."""

    def __init__(self, config: ModelConfig, data: DataSpec, seed: int, *, blank: bool = False) -> None:
        """Imports the builder.

        Args:
          config: names it and its options.
          data: what the model takes and must give.
          seed: of the initial weights.
          blank: variables begin as zeros, which takes less time than drawing their values.
        """
        self._config, self._data, self._seed, self._blank = config, data, seed, blank
        self._builder = target.load(config.target)
        self._takes_layouts = target.LAYOUTS in parameters(self._builder)
        self.lets_users_place = self._takes_layouts and not target.is_own(config)
        self._built: tf_keras.Model | None = None  # the model on the mesh, where its layers know their shapes

    def plain(self, *, stock: bool = False) -> tf_keras.Model:
        """Returns the model on one device, without layouts; its initial weights depend on the seed alone.

        Args:
          stock: of tf_keras's own layers, so that a saved model loads without this package.

        Raises:
          ConfigError: the builder raised, or returned something that is not a built model.
        """
        model = self._call({}, tf_keras if stock else dtensor_keras())
        if not model.built:
            model(self._symbolic_inputs())
        return model

    def on_mesh(self, mesh: dtensor.Mesh, layouts: Mapping[str, dtensor.Layout]) -> tf_keras.Model:
        """Returns the model with every variable made under its layout.

        Args:
          mesh: DTensor mesh.
          layouts: canonical path -> DTensor layout, for every variable.
        """
        if self._takes_layouts:
            return self._call(layouts, dtensor_keras())
        layout_map = tf_keras.dtensor.experimental.LayoutMap(mesh=mesh)
        for path, layout in layouts.items():
            layout_map[path.replace("/", ".")] = layout  # a key equal to the path is taken before any pattern
        with layout_map.scope():
            model = self._call({}, dtensor_keras())
            if not private.is_functional(model):
                private.map_subclassed(model, self._symbolic_inputs(), layout_map)
        self._built = model if private.is_functional(model) else None
        return model

    def variables(self, model: tf_keras.Model) -> dict[str, tf.Variable]:
        """Returns canonical path to variable."""
        return named_variables(model)

    def check(self, model: tf_keras.Model, config: RunConfig) -> None:
        """Checks what a plain model must be for any mesh.

        Raises:
          ConfigError: outputs that the task does not take; layers whose random numbers depend on the mesh; batch
            statistics where padding would count in them.
        """
        shape = getattr(model, "output_shape", None)  # a subclassed model does not tell
        if isinstance(shape, tuple):
            self._data.task.check(shape)
        check_paths(named_variables(model), config.model)
        for layer in model.submodules:
            known = isinstance(layer, Dropout)
            if isinstance(layer, private.RandomLayer) and not known and _draws(layer) and _devices(config) > 1:
                raise ConfigError(
                    f"model._target_={config.model.target} is refused: layer {layer.name} ({type(layer).__name__}) "
                    "draws numbers that depend on the mesh; use keras.layers.Dropout of the `keras` that the builder "
                    "is given, or mesh=single"
                )
            if isinstance(layer, tf_keras.layers.BatchNormalization) and config.dataset.remainder == "pad":
                raise refuse_padding(layer.name)

    def whole(self, model: tf_keras.Model) -> set[str]:
        """Returns the paths of variables that the layers' operations need whole, however they are stored."""
        whole = {id(variable) for layer in model.submodules for variable in whole_variables(layer)}
        return {path for path, variable in named_variables(model).items() if id(variable) in whole}

    def layer_outputs(self, batch: int) -> list[LayerOutput]:
        """Returns what every layer gives for a batch."""
        return layer_outputs(self._built or self.plain(), batch, self._data.inputs)

    def exported(self, values: Mapping[str, Array]) -> tf_keras.Model:
        """Returns a model of tf_keras's own layers with these weights."""
        model = self.plain(stock=True)
        for path, variable in named_variables(model).items():
            variable.assign(values[path])
        return model

    def _call(self, layouts: Mapping[str, dtensor.Layout], keras: ModuleType) -> tf_keras.Model:
        tf_keras.backend.reset_uids()  # unnamed layers get the same names at every call
        tf_keras.utils.set_random_seed(self._seed)
        told = given(self._builder, self._config, self._data)
        if self._takes_layouts:
            told[target.LAYOUTS] = layouts
        builder = self._builder
        if target.is_own(self._config):  # AutoGraph is for users' layers; ours lose seconds to it
            builder = tf.autograph.experimental.do_not_convert(builder)
        with tf.variable_creator_scope(_blank) if self._blank else nullcontext():
            model = build_model(builder, self._config, keras=keras, **told)
        check_kind(model, tf_keras.Model, self._config, "tf_keras")
        return model

    def _symbolic_inputs(self) -> Any:
        """Returns what the model is called with: one symbolic tensor, or several by name."""
        made = {name: tf_keras.Input(spec.shape, dtype=spec.dtype) for name, spec in self._data.inputs.items()}
        return made if len(made) > 1 else next(iter(made.values()))


def _blank(make: Any, **told: Any) -> tf.Variable:
    """Makes a variable of zeros in place of one whose value is drawn by a function."""
    if callable(told.get("initial_value")) and None not in (told.get("shape"), told.get("dtype")):
        told["initial_value"] = functools.partial(tf.zeros, told["shape"], told["dtype"])
    return make(**told)


def _draws(layer: tf_keras.layers.Layer) -> bool:
    """Tells whether a random layer draws anything while training: a dropout of 0 does not."""
    names = [name for name in ("rate", "dropout", "recurrent_dropout", "stddev") if hasattr(layer, name)]
    return not names or any(getattr(layer, name) for name in names)


def _devices(config: RunConfig) -> int:
    return math.prod(config.mesh.axes.values())

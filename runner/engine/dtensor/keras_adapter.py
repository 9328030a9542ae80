"""tf_keras models on a mesh: canonical variable names, and one builder call for plain and for sharded variables."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from typing import Any

from runner.config.errors import ConfigError
from runner.config.schema import ModelConfig, RunConfig
from runner.engine.base import IMAGES, Array, DataSpec, LayerInput, LayerOutput
from runner.engine.dtensor.layers import dtensor_keras, whole_variables
from runner.engine.layer_notes import Outputs
from runner.model import target
from runner.model.builder import call as build_model
from runner.model.builder import check_kind, check_outputs, check_paths, parameters, refuse_padding

_SKIP = ("_self_tracked_trackables", "_trainable_weights", "_non_trainable_weights", "_captured_weight_regularizer")


def named_variables(model: Any) -> dict[str, Any]:
    """Returns canonical path to variable, `layer/variable`, in the model's own order of weights.

    A layer of a Sequential or functional model goes by its name, with slashes for dots; one of a subclassed model by
    its attribute path; a nested functional model adds nothing to the path, as in tf_keras's LayoutMap.
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
                prefix = f"{layer_path(owner.name)}/" if functional else ""
                yield prefix + "/".join(str(part) for part in path), variable


def layer_path(name: str) -> str:
    """Returns a layer's canonical path: `block_0/mlp/up` of `block_0.mlp.up`; Keras 3 allows no slash in names."""
    return name.replace(".", "/")


def _is_functional(model: Any) -> bool:
    import tf_keras

    return isinstance(model, tf_keras.Sequential) or getattr(model, "_is_graph_network", False)


def whole_paths(model: Any) -> set[str]:
    """Returns the paths of variables that the layers' operations need whole, however they are stored."""
    whole = {id(variable) for layer in model.submodules for variable in whole_variables(layer)}
    return {path for path, variable in named_variables(model).items() if id(variable) in whole}


def layer_outputs(model: Any, batch: int, data: DataSpec) -> list[LayerOutput]:
    """Returns what each layer gives for a batch, in the order of the calls.

    Args:
      model: built; a functional one that calls each layer once knows its shapes, another one is traced, on one device.
      batch: examples.
      data: shapes of the images.
    """
    import tensorflow as tf
    import tf_keras

    nested = any(_is_functional(layer) or len(layer._inbound_nodes) > 1 for layer in model.layers)
    if _is_functional(model) and not nested:
        return [output for layer in model.layers for output in _known_outputs(layer, batch)]
    layers = [layer for layer in model.submodules if isinstance(layer, tf_keras.layers.Layer)]
    paths, noted = _layer_paths(model), list[Outputs]()

    def recorded(layer: Any, call: Any) -> Any:
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            outputs = call(*args, **kwargs)
            path = paths.get(id(layer), layer_path(layer.name))
            taken, given = (filter(tf.is_tensor, tf.nest.flatten(each)) for each in ((args, kwargs), outputs))
            noted[0].note(path, type(layer).__name__, taken, given)
            return outputs

        return wrapped

    def called(images: Any) -> Any:
        noted.append(Outputs(images))
        return model(images, training=False)

    calls = {id(layer): layer.call for layer in layers}
    try:
        for layer in layers:
            if not isinstance(layer, tf_keras.layers.InputLayer):
                layer.call = recorded(layer, tf.autograph.experimental.do_not_convert(calls[id(layer)]))
        signature = tf.TensorSpec((batch, *data.input_shape), tf.float32)
        tf.function(called).get_concrete_function(signature)
    finally:
        for layer in layers:
            layer.call = calls[id(layer)]
    return noted[0].found


def _known_outputs(layer: Any, batch: int) -> Iterator[LayerOutput]:
    import tensorflow as tf
    import tf_keras

    def shape(tensor: Any) -> tuple[int, ...]:
        return tuple(batch if dim is None else dim for dim in tensor.shape)

    def giver(tensor: Any) -> str:
        held = tensor._keras_history.layer
        return IMAGES if isinstance(held, tf_keras.layers.InputLayer) else layer_path(held.name)

    if isinstance(layer, tf_keras.layers.InputLayer):
        return
    inputs = tuple(LayerInput(giver(each), shape(each)) for each in tf.nest.flatten(layer.input))
    for output in tf.nest.flatten(layer.output):
        yield LayerOutput(layer_path(layer.name), type(layer).__name__, shape(output), output.dtype.name, inputs)


def _layer_paths(model: Any) -> dict[int, str]:
    """Returns id of layer -> canonical path, for layers inside a subclassed model its attribute path."""
    if _is_functional(model):
        return {}
    import tf_keras

    flat = model._flatten(predicate=lambda item: isinstance(item, tf_keras.layers.Layer), with_path=True)
    return {
        id(layer): "/".join(str(part) for part in path)
        for path, layer in reversed(list(flat))
        if not any(skipped in path for skipped in _SKIP)
    }


class ModelFactory:
    """Calls a config's builder, for a plain model and for one on a mesh, from the same seed."""

    def __init__(self, config: ModelConfig, data: DataSpec, seed: int, *, blank: bool = False) -> None:
        """Imports the builder.

        Args:
          config: names it and its options.
          data: shapes of the images, and the number of classes.
          seed: of the initial weights.
          blank: variables begin as zeros, which takes less time than drawing their values.
        """
        self._config, self._data, self._seed, self._blank = config, data, seed, blank
        self._builder = target.load(config.target)
        self._takes_layouts = target.LAYOUTS in parameters(self._builder)
        self.lets_users_place = self._takes_layouts and not target.is_own(config)
        self._built: Any = None  # the model on the mesh, where its layers know their shapes

    def plain(self, *, stock: bool = False) -> Any:
        """Returns the model on one device, without layouts; its initial weights depend on the seed alone.

        Args:
          stock: of tf_keras's own layers, so that a saved model loads without this package.

        Raises:
          ConfigError: the builder raised, or returned something that is not a built model.
        """
        import tf_keras

        model = self._call({}, tf_keras if stock else dtensor_keras())
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
            return self._call(layouts, dtensor_keras())
        layout_map = tf_keras.dtensor.experimental.LayoutMap(mesh=mesh)
        for path, layout in layouts.items():
            layout_map[path.replace("/", ".")] = layout  # a key equal to the path is taken before any pattern
        with layout_map.scope():
            model = self._call({}, dtensor_keras())
            if not _is_functional(model):
                self._map_subclassed(model, layout_map)
        self._built = model if _is_functional(model) else None
        return model

    def variables(self, model: Any) -> dict[str, Any]:
        """Returns canonical path to variable."""
        return named_variables(model)

    def check(self, model: Any, config: RunConfig) -> None:
        """Checks a plain model, see `check_model`."""
        check_model(model, config, self._data.num_classes)

    def whole(self, model: Any) -> set[str]:
        """Returns the paths of variables that the layers' operations need whole."""
        return whole_paths(model)

    def layer_outputs(self, batch: int) -> list[LayerOutput]:
        """Returns what every layer gives for a batch."""
        return layer_outputs(self._built or self.plain(), batch, self._data)

    def exported(self, values: Mapping[str, Array]) -> Any:
        """Returns a model of tf_keras's own layers with these weights."""
        model = self.plain(stock=True)
        for path, variable in named_variables(model).items():
            variable.assign(values[path])
        return model

    def _call(self, layouts: Mapping[str, Any], keras: Any) -> Any:
        import tensorflow as tf
        import tf_keras

        tf_keras.backend.reset_uids()  # unnamed layers get the same names at every call
        tf_keras.utils.set_random_seed(self._seed)
        extra: dict[str, Any] = {target.LAYOUTS: layouts} if self._takes_layouts else {}
        builder = self._builder
        if target.is_own(self._config):  # AutoGraph is for users' layers; ours lose seconds to it
            builder = tf.autograph.experimental.do_not_convert(builder)
        with tf.variable_creator_scope(_blank) if self._blank else nullcontext():
            model = build_model(
                builder,
                self._config,
                keras=keras,
                input_shape=self._data.input_shape,
                num_classes=self._data.num_classes,
                **extra,
            )
        check_kind(model, tf_keras.Model, self._config, "tf_keras")
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


def _blank(make: Any, **given: Any) -> Any:
    """Makes a variable of zeros in place of one whose value is drawn by a function."""
    import tensorflow as tf

    if callable(given.get("initial_value")) and None not in (given.get("shape"), given.get("dtype")):
        given["initial_value"] = functools.partial(tf.zeros, given["shape"], given["dtype"])
    return make(**given)


def check_model(model: Any, config: RunConfig, num_classes: int) -> None:
    """Checks what a model must be for any mesh.

    Args:
      model: plain and built.
      config: the run's.
      num_classes: of the dataset.

    Raises:
      ConfigError: outputs other than one logit a class; layers whose random numbers depend on the mesh; batch
        statistics where padding would count in them.
    """
    import tf_keras
    from tf_keras.src.engine.base_layer import BaseRandomLayer

    key = f"model._target_={config.model.target}"
    if hasattr(model, "output_shape"):
        check_outputs(model.output_shape, num_classes, config.model)
    check_paths(named_variables(model), config.model)
    for layer in model.submodules:
        known = isinstance(layer, dtensor_keras().layers.Dropout)
        if isinstance(layer, BaseRandomLayer) and not known and _draws(layer) and _devices(config) > 1:
            raise ConfigError(
                f"{key} is refused: layer {layer.name} ({type(layer).__name__}) draws numbers that depend on the "
                "mesh; use keras.layers.Dropout of the `keras` that the builder is given, or mesh=single"
            )
        if isinstance(layer, tf_keras.layers.BatchNormalization) and config.dataset.remainder == "pad":
            raise refuse_padding(layer.name)


def _draws(layer: Any) -> bool:
    """Tells whether a random layer draws anything while training: a dropout of 0 does not."""
    names = [name for name in ("rate", "dropout", "recurrent_dropout", "stddev") if hasattr(layer, name)]
    return not names or any(getattr(layer, name) for name in names)


def _devices(config: RunConfig) -> int:
    return math.prod(config.mesh.axes.values())

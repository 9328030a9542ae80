"""Keras 3 models for the engine `jax`: canonical names, builder calls that depend on the seed alone, checks."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from runner.config.errors import ConfigError
from runner.config.schema import ModelConfig, RunConfig
from runner.engine.base import DataSpec, LayerOutput
from runner.engine.layer_notes import Outputs
from runner.model import target
from runner.model.builder import call as build_model
from runner.model.builder import (
    check_kind,
    check_outputs,
    check_paths,
    check_trainable,
    parameters,
    policy_name,
    refuse_padding,
)

# Lists that Keras keeps beside the attributes; going through them would give a variable a second path.
_BOOKKEEPING = (
    "_layers",
    "_trainable_variables",
    "_non_trainable_variables",
    "_seed_generators",
    "_metrics",
    "_functional",
    "_operations",
    "_inbound_nodes",
    "_outbound_nodes",
    "_tracker",
)


class Names:
    """Canonical paths of a model's layers and variables, the same as tf_keras's models have in the DTensor engine.

    A layer of a Sequential or functional model goes by its name, with slashes for dots; one of a subclassed model by
    its attribute path; a nested functional model adds nothing to the path.

    Attributes:
      layers: id of a layer -> path.
      variables: path -> Keras variable, in the model's own order of weights.
    """

    def __init__(self, model: Any) -> None:
        """Walks the model.

        Raises:
          ConfigError: two variables have one path, as layers of one name in nested models give.
        """
        self.layers: dict[int, str] = {}
        self._paths: dict[int, str] = {}
        self._seen: set[int] = set()
        self._walk(model, "")
        self.variables: dict[str, Any] = {}
        for variable in model.weights:
            path = self._paths.get(id(variable), variable.path)
            if path in self.variables:
                raise ConfigError(f"model._target_ is refused: two variables are named {path}; name layers apart")
            self.variables[path] = variable

    def _walk(self, owner: Any, prefix: str) -> None:
        if id(owner) in self._seen:
            return
        self._seen.add(id(owner))
        if _is_functional(owner):
            for layer in owner.layers:
                path = prefix if _is_functional(layer) else f"{prefix}{layer_path(layer.name)}/"
                self.layers.setdefault(id(layer), path.removesuffix("/") or layer_path(layer.name))
                self._walk(layer, path)
            return
        for name, value in sorted(vars(owner).items()):
            if name not in _BOOKKEEPING:
                self._take(value, f"{prefix}{name}")

    def _take(self, value: Any, path: str) -> None:
        """Notes what an attribute holds: a variable, a layer, or a list or dict of them."""
        import keras

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


def _is_functional(layer: Any) -> bool:
    import keras
    from keras.src.models import Functional

    return isinstance(layer, keras.Sequential | Functional)


class Keras3Factory:
    """Calls a config's builder with Keras 3; weights and dropout seeds depend on the config's seed alone."""

    def __init__(
        self,
        config: ModelConfig,
        data: DataSpec,
        seed: int,
        precision: str = "float32",
        *,
        on_cpu: bool = False,
        whole_images: bool = True,
    ) -> None:
        self._config, self._data, self._seed = config, data, seed
        self._forms = {"on_cpu": on_cpu, "whole_images": whole_images}
        self._policy = policy_name(precision)
        self._builder = target.load(config.target)

    def build(self, *, stock: bool = False) -> Any:
        """Returns the built model, whole on one device.

        Args:
          stock: of Keras's own layers, so that a saved model loads without this package.

        Raises:
          ConfigError: the builder raised, or returned something that is not a built model.
        """
        import keras

        from runner.engine.jax.layers.patches import jax_keras

        extra: dict[str, Any] = {target.LAYOUTS: {}} if target.LAYOUTS in parameters(self._builder) else {}
        with _drawn_from(self._seed), _under_policy(self._policy):
            model = build_model(
                self._finished,
                self._config,
                keras=keras if stock else jax_keras(**self._forms),
                input_shape=self._data.input_shape,
                num_classes=self._data.num_classes,
                **extra,
            )
        check_kind(model, keras.Model, self._config, "Keras 3")
        return model

    def traced(self) -> Any:
        """Returns the model with variables that have a shape and no value: none is drawn or held.

        Raises:
          ConfigError: as `build`.
        """
        import jax

        made: list[Any] = []
        try:
            jax.eval_shape(lambda: made.append(self.build()))
        except ConfigError:  # a builder may want values
            return self.build()
        return made[0]

    def _finished(self, **given: Any) -> Any:
        """Returns the builder's model with its variables made."""
        import keras

        model = self._builder(**given)
        if isinstance(model, keras.Model) and not model.built:
            model(keras.KerasTensor((1, *self._data.input_shape), "float32"))
        return model


@contextmanager
def _under_policy(name: str) -> Iterator[None]:
    """Makes layers that are built inside compute in a precision; a layer keeps it."""
    import keras

    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy(name)
    try:
        yield
    finally:
        keras.config.set_dtype_policy(before)


@contextmanager
def _drawn_from(seed: int) -> Iterator[None]:
    """Makes a build a function of the seed: Keras draws the seeds of layers without one from Python's `random`.

    `keras.utils.set_random_seed` would do it too, and import TensorFlow.
    """
    from keras.src.utils import naming

    before = random.getstate()
    random.seed(seed)
    naming.reset_uids()  # layers without a name get the same names at every call
    try:
        yield
    finally:
        random.setstate(before)


def check_model(model: Any, config: RunConfig, num_classes: int) -> None:
    """Checks what a model must be for any mesh.

    Args:
      model: built.
      config: the run's.
      num_classes: of the dataset.

    Raises:
      ConfigError: outputs other than one logit a class; batch statistics where padding would count in them.
    """
    import keras

    if hasattr(model, "input_shape"):
        image = (1, *[int(size) for size in model.input_shape[1:]])
        shape = model.compute_output_shape(image)
        check_outputs(shape if isinstance(shape, tuple | list) else (1,), num_classes, config.model)
    check_paths(Names(model).variables, config.model)
    check_trainable(model.trainable_variables, config.model)
    for layer in model._flatten_layers():
        if isinstance(layer, keras.layers.BatchNormalization) and config.dataset.remainder == "pad":
            raise refuse_padding(layer.name)


def seed_indices(model: Any) -> list[int]:
    """Returns where among the model's non-trainable variables the states of its random generators are."""
    weights = {id(variable) for variable in model.non_trainable_weights}
    return [i for i, variable in enumerate(model.non_trainable_variables) if id(variable) not in weights]


def layer_outputs(model: Any, batch: int, data: DataSpec) -> list[LayerOutput]:
    """Returns what each layer gives for a batch, in the order of the calls, by tracing one call.

    Args:
      model: built.
      batch: examples.
      data: shapes of the images.
    """
    import jax
    import keras

    names, noted = Names(model).layers, list[Outputs]()

    def recorded(layer: Any, call: Any) -> Any:
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            outputs = call(*args, **kwargs)
            path = names.get(id(layer), layer_path(layer.name))
            taken, given = (filter(_is_tensor, jax.tree.leaves(each)) for each in ((args, kwargs), outputs))
            noted[0].note(path, type(layer).__name__, taken, given)
            return outputs

        return wrapped

    def called(state: Any, images: Any) -> Any:
        noted.append(Outputs(images))
        return model.stateless_call(*state, images, training=False)

    layers = [
        each for each in model._flatten_layers(include_self=False) if not isinstance(each, keras.layers.InputLayer)
    ]
    try:
        for layer in layers:
            # Past Keras's own __setattr__, which would track the function.
            object.__setattr__(layer, "call", recorded(layer, layer.call))
        state = [
            [jax.ShapeDtypeStruct(tuple(variable.shape), variable.dtype) for variable in each]
            for each in (model.trainable_variables, model.non_trainable_variables)
        ]
        images = jax.ShapeDtypeStruct((batch, *data.input_shape), "float32")
        jax.eval_shape(called, state, images)
    finally:
        for layer in layers:
            vars(layer).pop("call", None)
    return noted[0].found


def _is_tensor(value: Any) -> bool:
    return hasattr(value, "shape") and hasattr(value, "dtype")

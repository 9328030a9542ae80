"""A run's model on one device, without a mesh: the weights that a checkpoint holds in parts, whole again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from runner.config.errors import ConfigError
from runner.config.schema import RunConfig
from runner.engine.base import Array, DataSpec


@dataclass(frozen=True)
class PlainModel:
    """A model on one device.

    Attributes:
      model: called with float32 images in [0, 1] and `training`: a tf_keras model, a tf.Module or a Keras 3 model.
      keras: the same network as a Keras model, for a file of Keras's own; None where there is none.
      package: `tf_keras` or `keras`, what `keras` is made of.
      why: in words, why `keras` is None.
    """

    model: Any
    keras: Any
    package: str
    why: str = ""


def weights_in_use(state: Mapping[str, Array]) -> dict[str, Array]:
    """Returns what evaluations compute with: the averages of the weights where the run keeps them, else the weights.

    Args:
      state: what an engine's `state` or a checkpoint holds.
    """
    paths = set(state)
    own = [path for path in state if not path.startswith(("optimizer/", "ema/"))]
    return {path: state[f"ema/{path}" if f"ema/{path}" in paths else path] for path in own}


def make_plain(config: RunConfig, data: DataSpec, values: Mapping[str, Array]) -> PlainModel:
    """Builds the config's model on one device, of its framework's own layers.

    Args:
      config: checked; the engine's process environment is set.
      data: shapes of the dataset.
      values: canonical path to whole array, for every variable of the model; others are left alone.

    Raises:
      ConfigError: the builder fails.
    """
    make = {"jax": _jax, "core_dtensor": _core}.get(config.engine.name, _keras)
    return make(config, data, values)


def _keras(config: RunConfig, data: DataSpec, values: Mapping[str, Array]) -> PlainModel:
    from runner.engine.dtensor.keras_adapter import ModelFactory

    model = ModelFactory(config.model, data, config.trainer.seed).exported(values)
    return PlainModel(model, model, "tf_keras")


def _core(config: RunConfig, data: DataSpec, values: Mapping[str, Array]) -> PlainModel:
    from runner.engine.dtensor.core import ModuleFactory

    factory = ModuleFactory(config.model, data, config.trainer.seed)
    module = factory.plain()
    for path, variable in factory.variables(module).items():
        variable.assign(values[path])
    try:
        return PlainModel(module, factory.exported(values), "tf_keras")
    except (ConfigError, AttributeError, KeyError):  # a user's own builder, which knows no Keras
        return PlainModel(module, None, "tf_keras", "its builder makes no Keras model")


def _jax(config: RunConfig, data: DataSpec, values: Mapping[str, Array]) -> PlainModel:
    from runner.engine.jax.adapter import Keras3Factory, Names

    model = Keras3Factory(config.model, data, config.trainer.seed, config.engine.precision).build(stock=True)
    for path, variable in Names(model).variables.items():
        variable.assign(values[path])
    return PlainModel(model, model, "keras")

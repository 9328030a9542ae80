"""A run's model as the engine's own Keras builds it on one device, for workers that train it by `compile`."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any, NamedTuple

from runner.config.schema import RunConfig
from runner.task.base import DataSpec


class Stock(NamedTuple):
    """A model of stock Keras.

    Attributes:
      keras: the module, `keras` or `tf_keras`.
      model: built with the run's seed.
      variables: canonical path -> variable.
    """

    keras: Any
    model: Any
    variables: Mapping[str, Any]


def build(config: RunConfig, data: DataSpec) -> Stock:
    """Builds the model without a mesh."""
    if config.engine.name == "jax":
        keras = importlib.import_module("keras")
        factory = importlib.import_module("runner.engine.jax.adapter").Keras3Factory
        model = factory(config.model, data, config.trainer.seed).build()
        names = importlib.import_module("runner.engine.jax.names").Names(model)
        return Stock(keras, model, names.variables)
    keras = importlib.import_module("tf_keras")
    keras.backend.experimental.enable_tf_random_generator()
    adapter = importlib.import_module("runner.engine.dtensor.adapters.keras").KerasAdapter
    model = adapter(config.model, data, config.trainer.seed).plain()
    named_variables = importlib.import_module("runner.engine.dtensor.adapters.paths").named_variables
    return Stock(keras, model, named_variables(model))

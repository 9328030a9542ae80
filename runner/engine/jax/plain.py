"""The config's model on one device, for exports."""

from __future__ import annotations

from collections.abc import Mapping

from runner.config.schema import RunConfig
from runner.data.base import Array
from runner.engine.base import PlainModel
from runner.engine.jax.adapter import Keras3Factory
from runner.engine.registry import keras_package
from runner.task.base import DataSpec


def make(config: RunConfig, data: DataSpec, values: Mapping[str, Array]) -> PlainModel:
    """Returns the model with these weights; see `runner.engine.registry.make_plain`."""
    factory = Keras3Factory(config.model, data, config.trainer.seed, config.engine.precision)
    model = factory.build_with(values)
    return PlainModel(model, model, keras_package(config.engine.name))

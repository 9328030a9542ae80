"""The config's model on one device, for exports."""

from __future__ import annotations

from collections.abc import Mapping

from runner.config.schema import RunConfig
from runner.data.base import Array
from runner.engine.base import PlainModel
from runner.engine.jax.adapter import Keras3Factory, set_values
from runner.engine.jax.names import Names
from runner.engine.jax.own_step.engine import exported_name
from runner.engine.jax.own_step.parts import OwnStepFactory
from runner.engine.registry import keras_package
from runner.task.base import DataSpec
from runner.task.custom import StepTask


def make(config: RunConfig, data: DataSpec, values: Mapping[str, Array]) -> PlainModel:
    """Returns the model with these weights; see `runner.engine.registry`."""
    if isinstance(data.task, StepTask):
        # No step is taken, so the length of the training does not matter.
        parts, _ = OwnStepFactory(config, data, total_steps=1).build_for_mesh()
        variables = parts.model_variables
        model = parts.models[exported_name(data.task, parts.models)]
    else:
        model, _ = Keras3Factory(config.model, data, config.trainer.seed, config.engine.precision).build_for_mesh()
        variables = Names(model).variables
    set_values(variables, values)
    return PlainModel(model, model, keras_package(config.engine.name))

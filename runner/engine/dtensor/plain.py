"""The config's model on one device, for exports."""

from __future__ import annotations

from collections.abc import Mapping

from runner.config.schema import RunConfig
from runner.data.base import Array
from runner.engine.base import PlainModel
from runner.engine.dtensor.adapters import make_adapter
from runner.engine.registry import ENGINES
from runner.task.base import DataSpec


def make(config: RunConfig, data: DataSpec, values: Mapping[str, Array]) -> PlainModel:
    """Returns the model with these weights; see `runner.engine.registry`."""
    entry = ENGINES[config.engine.name]
    adapter = make_adapter(config.engine.name, config.model, data, config.trainer.seed)
    keras_model = adapter.exported(values)
    model = keras_model
    if entry.takes_layouts:
        model = adapter.plain()
        for path, variable in adapter.variables(model).items():
            variable.assign(values[path])
    return PlainModel(model, keras_model, entry.keras)

"""The config's model on one device, for exports."""

from __future__ import annotations

from collections.abc import Mapping

from runner.config.schema import RunConfig
from runner.data.base import Array
from runner.engine.base import PlainModel
from runner.engine.dtensor.adapters import make_adapter
from runner.engine.registry import ENGINES
from runner.errors import ConfigError
from runner.task.base import DataSpec


def make(config: RunConfig, data: DataSpec, values: Mapping[str, Array]) -> PlainModel:
    """Returns the model with these weights; see `runner.engine.registry.make_plain`."""
    entry = ENGINES[config.engine.name]
    adapter = make_adapter(config, data)
    if not entry.takes_layouts:
        model = adapter.exported(values)
        return PlainModel(model, model, entry.keras)
    module = adapter.plain()
    for path, variable in adapter.variables(module).items():
        variable.assign(values[path])
    try:
        return PlainModel(module, adapter.exported(values), entry.keras)
    except (ConfigError, AttributeError, KeyError):
        # A user's own builder may know nothing of Keras. The module can be exported without it.
        return PlainModel(module, None, entry.keras, "its builder makes no Keras model")

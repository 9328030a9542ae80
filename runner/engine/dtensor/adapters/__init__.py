"""Models on a DTensor mesh: adapters for tf_keras and TensorFlow Core build them, and know their variables."""

from __future__ import annotations

from runner.config.schema import RunConfig
from runner.engine.dtensor.adapters.core import CoreAdapter
from runner.engine.dtensor.adapters.keras import KerasAdapter
from runner.engine.registry import ENGINES
from runner.task.base import DataSpec


def make_adapter(config: RunConfig, data: DataSpec) -> CoreAdapter | KerasAdapter:
    """Returns the adapter of the config's engine."""
    if ENGINES[config.engine.name].takes_layouts:
        return CoreAdapter(config.model, data, config.trainer.seed)
    return KerasAdapter(config.model, data, config.trainer.seed)

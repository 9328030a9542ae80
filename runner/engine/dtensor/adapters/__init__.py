"""Models on a DTensor mesh: adapters for tf_keras and TensorFlow Core build them, and know their variables."""

from __future__ import annotations

from runner.config.schema import ModelConfig
from runner.engine.dtensor.adapters.core import CoreAdapter
from runner.engine.dtensor.adapters.keras import KerasAdapter
from runner.engine.registry import ENGINES
from runner.task.base import DataSpec

Adapter = CoreAdapter | KerasAdapter


def make_adapter(engine: str, config: ModelConfig, data: DataSpec, seed: int) -> Adapter:
    """Returns the adapter of an engine."""
    if ENGINES[engine].takes_layouts:
        return CoreAdapter(config, data, seed)
    return KerasAdapter(config, data, seed)

"""Models on a DTensor mesh: one adapter for tf_keras, one for TensorFlow Core."""

from __future__ import annotations

from runner.config.schema import RunConfig
from runner.engine.dtensor.adapters.base import Model, ModelAdapter
from runner.engine.dtensor.adapters.core import CoreAdapter
from runner.engine.dtensor.adapters.keras import KerasAdapter
from runner.engine.registry import ENGINES
from runner.task.base import DataSpec

__all__ = ["Model", "ModelAdapter", "make_adapter"]


def make_adapter(config: RunConfig, data: DataSpec) -> ModelAdapter:
    """Returns the adapter of the config's engine.

    Args:
      config: a checked config.
      data: what the engine is built for.
    """
    if ENGINES[config.engine.name].takes_layouts:
        return CoreAdapter(config.model, data, config.trainer.seed)
    return KerasAdapter(config.model, data, config.trainer.seed)

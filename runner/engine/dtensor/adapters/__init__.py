"""Models on a DTensor mesh: one adapter for tf_keras, one for TensorFlow Core.

Each builds a config's model, on one device and on a mesh, and knows its variables.
"""

from __future__ import annotations

from runner.config.schema import RunConfig
from runner.engine.dtensor.adapters.core import CoreAdapter
from runner.engine.dtensor.adapters.keras import KerasAdapter
from runner.engine.registry import ENGINES
from runner.task.base import DataSpec


def make_adapter(config: RunConfig, data: DataSpec) -> CoreAdapter | KerasAdapter:
    """Returns the adapter of the config's engine.

    Args:
      config: a checked config.
      data: what the engine is built for.
    """
    if ENGINES[config.engine.name].takes_layouts:
        return CoreAdapter(config.model, data, config.trainer.seed)
    return KerasAdapter(config.model, data, config.trainer.seed)

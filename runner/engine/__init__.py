"""Engines: objects that own devices and state; the loop drives them through `base.Engine`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from runner.config.schema import RunConfig

if TYPE_CHECKING:  # NumPy is a third of the time that a refusal takes
    from runner.engine.base import DataSpec, Engine


def make_engine(config: RunConfig, data: DataSpec, total_steps: int, *, planning: bool = False) -> Engine:
    """Returns the engine that the config names, not yet built. This is where TensorFlow or JAX is imported.

    Args:
      config: a checked config.
      data: shapes of the dataset.
      total_steps: training steps of the whole run, for schedules that end with it.
      planning: its program is read and no step is run, so that it may leave out what only a step needs: values of
        variables, the canary, devices beside the first.
    """
    if config.engine.name == "jax":
        from runner.engine.jax.engine import JaxEngine

        return JaxEngine(config, data, total_steps, planning=planning)
    if config.engine.name == "core_dtensor":
        from runner.engine.dtensor.core import CoreDTensorEngine

        return CoreDTensorEngine(config, data, total_steps, planning=planning)
    from runner.engine.dtensor.keras import KerasDTensorEngine

    return KerasDTensorEngine(config, data, total_steps, planning=planning)

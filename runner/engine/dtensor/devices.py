"""Settles the process's TensorFlow devices as soon as TensorFlow is imported.

It does not matter which module imports it.
"""

from __future__ import annotations

from runner.config.schema import RunConfig
from runner.engine.dtensor import mesh


def prepare_devices(config: RunConfig) -> None:
    """Sets which devices TensorFlow creates at its first computation.

    Args:
      config: a checked config.

    Raises:
      ConfigError: TensorFlow finds fewer devices than the mesh needs.
    """
    mesh.make_devices(config.mesh, config.engine.intra_op_threads)

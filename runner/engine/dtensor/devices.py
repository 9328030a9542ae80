"""Settles the process's devices as soon as TensorFlow is imported, whoever imports it."""

from __future__ import annotations

from runner.config.schema import RunConfig
from runner.engine.dtensor import mesh


def prepare_devices(config: RunConfig) -> None:
    """Settles which devices TensorFlow makes when it first computes.

    Args:
      config: a checked config.

    Raises:
      ConfigError: TensorFlow sees fewer devices than the mesh has.
    """
    mesh.make_devices(config.mesh, config.engine.intra_op_threads)

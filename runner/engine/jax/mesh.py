"""The JAX mesh of a config."""

from __future__ import annotations

import jax
import numpy as np
from jax.sharding import Mesh

from runner.config.schema import MeshConfig
from runner.engine.accelerated import INSTALLS
from runner.engine.jax import private, processes
from runner.errors import invalid
from runner.layout.mesh import device_kind, size
from runner.processes.team import current


def configure(config: MeshConfig) -> Mesh:
    """Makes this process's devices and the JAX mesh of all. Must be the process's first use of JAX's devices.

    Args:
      config: the mesh group, axes resolved.

    Returns:
      The mesh, its axes in the config's order, its devices numbered row-major.

    Raises:
      ConfigError: JAX sees fewer devices of that kind.
      RuntimeError: JAX's devices were already made (from JAX).
    """
    kind = device_kind(config)
    count = size(config.axes)
    team = current()
    enough = private.devices_are_made() and len(jax.devices("cpu")) >= count
    if kind == "cpu" and not enough:
        jax.config.update("jax_num_cpu_devices", count // team.count)
    if not private.devices_are_made():
        processes.connect(team)
    try:
        devices = jax.devices(kind)
    except RuntimeError:  # a JAX without support for the kind
        devices = []
    own = count // team.count  # of each process's, in their order
    of = [[one for one in devices if one.process_index == index] for index in range(team.count)]
    devices = [one for found in of for one in found[:own]]
    if len(devices) < count:
        raise invalid(
            "mesh.device",
            kind,
            problem=f"JAX sees {len(devices)} of kind {kind}, {count} are asked for",
            fix=f"{INSTALLS['jax', kind]} and see what its log says of the driver, or set mesh.device=cpu",
        )
    # Not jax.make_mesh: its axes are explicit by default, and Keras's layers give no output shardings.
    return Mesh(np.array(devices).reshape(list(config.axes.values())), tuple(config.axes))

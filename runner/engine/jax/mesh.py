"""Makes the process's devices and the JAX mesh of a config."""

from __future__ import annotations

import jax
import numpy as np
from jax.sharding import Mesh

from runner.cluster.team import current
from runner.config.schema import MeshConfig
from runner.engine.devices import INSTALLS
from runner.engine.jax.devices import make_devices
from runner.errors import invalid
from runner.layout.mesh import device_kind, size


def configure(config: MeshConfig) -> Mesh:
    """Makes this process's devices and the mesh of all processes' devices, numbered row-major; JAX's first use of
    them.

    Raises:
      ConfigError: JAX sees fewer devices of that kind, or has made fewer CPU devices for code that ran before.
    """
    kind = device_kind(config)
    count = size(config.axes)
    team = current()
    make_devices(config)
    devices = _devices(kind, team.count, count // team.count)
    if len(devices) < count:
        problem = f"the mesh needs {count} devices, but JAX sees {len(devices)} of kind {kind}"
        if kind == "cpu":
            # Their number is fixed once JAX has made them.
            raise invalid(
                "mesh.device",
                kind,
                problem=f"{problem}, which code that ran earlier in this process made",
                fix="run it in a new process, or set mesh=single",
            )
        fix = f"{INSTALLS['jax', kind]} and check its log for the driver, or set mesh.device=cpu"
        raise invalid("mesh.device", kind, problem=problem, fix=fix)
    # Not jax.make_mesh: its axes are explicit by default, and Keras's layers give no output shardings.
    return Mesh(np.array(devices).reshape(list(config.axes.values())), tuple(config.axes))


def _devices(kind: str, processes_count: int, per_process: int) -> list[jax.Device]:
    try:
        devices = jax.devices(kind)
    except RuntimeError:
        # A JAX without support for the kind.
        return []
    chosen: list[jax.Device] = []
    for index in range(processes_count):
        own = [device for device in devices if device.process_index == index]
        chosen += own[:per_process]
    return chosen

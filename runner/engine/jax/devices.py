"""The process's devices, whose number is set as soon as JAX is imported, whoever imports it, and their mesh."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

import jax
import numpy as np
from jax.sharding import Mesh

from runner.cluster.team import current
from runner.config.schema import MeshConfig
from runner.engine.devices import INSTALLS
from runner.errors import invalid
from runner.host.late import late
from runner.layout import mesh

if TYPE_CHECKING:
    from runner.engine.jax import processes
else:
    # That module imports Keras, whose own import may be what imports JAX.
    processes = late("runner.engine.jax.processes")


def prepare_devices(config: MeshConfig) -> None:
    """Sets the number of CPU devices, and connects JAX to the other processes, unless that was done before.

    JAX makes the devices with the first array. A layer with a random generator makes one as it is made, which may be
    when a user's module is imported.
    """
    team = current()
    if mesh.device_kind(config) == "cpu":
        # JAX raises if its devices are made already; `make_mesh` then checks that they suffice.
        with suppress(RuntimeError):
            jax.config.update("jax_num_cpu_devices", mesh.size(config.axes) // team.count)
    if team.count > 1:
        processes.connect(team)
        # In all processes at once: each waits for the devices of the others, and gives up after two minutes.
        jax.devices()


def make_mesh(config: MeshConfig) -> Mesh:
    """Makes this process's devices and the mesh of all processes' devices, numbered row-major; JAX's first use of
    them.

    Raises:
      ConfigError: JAX sees fewer devices of that kind, or has made fewer CPU devices for code that ran before.
    """
    kind = mesh.device_kind(config)
    count = mesh.size(config.axes)
    team = current()
    prepare_devices(config)
    devices = _devices(kind, team.count, count // team.count)
    if len(devices) < count:
        problem = f"the mesh needs {count} devices, but JAX sees {len(devices)} of kind {kind}"
        if kind == "cpu":
            # Their number is fixed once JAX has made them.
            problem = f"{problem}, which code that ran earlier in this process made"
            raise invalid("mesh.device", kind, problem=problem, fix="run it in a new process, or set mesh=single")
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

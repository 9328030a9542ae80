"""Sets the number of the process's devices as soon as JAX is imported, whoever imports it."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

import jax

from runner.cluster.team import current
from runner.config.schema import MeshConfig, RunConfig
from runner.host.late import late
from runner.layout import mesh

if TYPE_CHECKING:
    from runner.engine.jax import processes
else:
    # That module imports Keras, whose own import may be what imports JAX.
    processes = late("runner.engine.jax.processes")


def prepare_devices(config: RunConfig) -> None:
    """Sets how many CPU devices JAX makes when the first array is made.

    A layer with a random generator makes an array as it is made, which may be when a user's module is imported.
    """
    if config.hardware.is_here:
        make_devices(config.mesh)


def make_devices(config: MeshConfig) -> None:
    """Sets the number of CPU devices, and connects JAX to the other processes, unless that was done before."""
    team = current()
    if mesh.device_kind(config) == "cpu":
        # JAX raises if its devices are made already; `mesh.configure` then checks that they suffice.
        with suppress(RuntimeError):
            jax.config.update("jax_num_cpu_devices", mesh.size(config.axes) // team.count)
    if team.count > 1:
        processes.connect(team)
        # In all processes at once: each waits for the devices of the others, and gives up after two minutes.
        jax.devices()

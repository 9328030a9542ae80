"""Settles the process's devices as soon as JAX is imported, whoever imports it. Keras may not be loaded yet."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

import jax

from runner.config.schema import RunConfig
from runner.host.late import late
from runner.layout import mesh
from runner.processes.team import current

if TYPE_CHECKING:
    from runner.engine.jax import processes
else:
    processes = late("runner.engine.jax.processes")  # with Keras, whose own import may be what imports JAX


def prepare_devices(config: RunConfig) -> None:
    """Settles how many CPU devices JAX makes when the first array is made.

    A layer with a random generator makes an array as it is made, which may be when a user's module is imported.

    Args:
      config: a checked config.
    """
    if mesh.device_kind(config.mesh) == "cpu":
        # JAX raises where the devices are there already; `mesh.configure` then tells whether they suffice.
        with suppress(RuntimeError):
            jax.config.update("jax_num_cpu_devices", mesh.size(config.mesh.axes) // current().count)
    if current().count > 1:
        processes.connect(current())

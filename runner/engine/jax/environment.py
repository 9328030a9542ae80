"""What must be set before JAX loads. Imports neither JAX nor Keras."""

from __future__ import annotations

import os
import re

from runner.config.schema import RunConfig
from runner.host import accelerators, cores, paths
from runner.layout import mesh
from runner.processes.team import current

_CACHE = "jax_cache"
_TERMINATE = "--xla_cpu_collective_call_terminate_timeout_seconds"
# A collective that lacks a participant ends the process; the default is to say so after 40 seconds.
_FLAGS = {
    "--xla_cpu_collective_call_warn_stuck_timeout_seconds": 20,
    _TERMINATE: 120,
}


def threads(devices: int) -> int:
    """Returns how many threads XLA is to have for its virtual CPU devices.

    A program holds a thread a device until all devices have met in an all-reduce, and without another one left for the
    parts of an operation it would wait for ever; XLA then aborts the process. Two programs at a time would hold twice
    as many, so the engine starts one when the one before has ended. More threads than needed cost time: the parts of
    an operation are as many, and the system switches between them.

    Args:
      devices: of the mesh, in this process.
    """
    many = cores.available()
    return max(many, devices + max(2, min(many, devices))) if devices > 1 else many


def prepare_environment(config: RunConfig) -> None:
    """Sets the process's environment; must run before JAX's and Keras's first import.

    Args:
      config: a checked config. What the environment asks for beyond its needs is kept.
    """
    os.environ["KERAS_BACKEND"] = "jax"
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # XLA's C++ log goes by this name too
    limits = dict(_FLAGS)
    if current().count > 1:
        most = round(config.cluster.timeout)
        limits |= {_TERMINATE: max(most, limits[_TERMINATE]), "--xla_cpu_collective_timeout_seconds": most}
    kind = mesh.device_kind(config.mesh)
    if kind == "gpu":
        accelerators.keep_to(mesh.size(config.mesh.axes) // current().count)
    if kind != "cpu":
        return
    os.environ["JAX_PLATFORMS"] = "cpu"
    needed = threads(mesh.size(config.mesh.axes) // current().count)
    held = os.environ.get("PJRT_NPROC", "")
    os.environ["PJRT_NPROC"] = str(max(needed, int(held) if held.isdigit() else 0))
    flags = os.environ.get("XLA_FLAGS", "")
    added = [f"{flag}={value}" for flag, value in limits.items() if not re.search(rf"{flag}\b", flags)]
    os.environ["XLA_FLAGS"] = " ".join([*flags.split(), *added])


def cache_folder() -> str:
    """Returns where compiled programs are kept between runs."""
    return str(paths.outputs_dir() / _CACHE)

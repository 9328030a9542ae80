"""Environment variables that must be set before JAX loads; imports neither JAX nor Keras."""

from __future__ import annotations

import errno
import logging
import os
import re

from runner.cluster import accelerators
from runner.cluster.team import current
from runner.config.schema import EngineConfig, MeshConfig
from runner.data.cache import private_cache
from runner.host import cores
from runner.host.outputs import warn
from runner.layout import mesh

logger = logging.getLogger(__name__)

_CACHE = "jax"
_WARN = "--xla_cpu_collective_call_warn_stuck_timeout_seconds"
_TERMINATE = "--xla_cpu_collective_call_terminate_timeout_seconds"
# How long a collective between a process's virtual devices waits for a participant, in seconds: then XLA aborts the
# process. Its default is 40 s. The devices share the machine's cores, so a busy machine may need longer in a run that
# has no error; more than 120 s would only delay the report of a deadlock. XLA warns after 20 s.
_FLAGS = {_WARN: 20, _TERMINATE: 120}
# How long collectives between processes wait, which is an error and not an abort.
_BETWEEN_PROCESSES = "--xla_cpu_collective_timeout_seconds"


def threads(devices: int) -> int:
    """Returns how many threads XLA should have for the virtual CPU devices of this process.

    A program holds one thread per device until all devices have met in an all-reduce. Without another thread for the
    parts of an operation it would wait for ever, and XLA then aborts the process. Two programs at a time would hold
    twice as many, so the engine starts one when the one before has ended. More threads than needed cost time: an
    operation has as many parts, and the system switches between them.
    """
    available = cores.available()
    if devices <= 1:
        return available
    # One thread per device, and for the parts of operations one per core, but two at least.
    spare = max(2, min(available, devices))
    return max(available, devices + spare)


def prepare_environment(_: EngineConfig, on: MeshConfig | None, timeout: float) -> None:
    """Sets the process's environment; must run before JAX's and Keras's first import.

    Without a mesh it is that of a plan for another machine. `timeout` is the cluster's, in seconds.
    """
    os.environ["KERAS_BACKEND"] = "jax"
    # XLA's C++ log goes by this name too.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    if on is None:
        # The other machine's devices are described, and this one's CPU traces and compiles.
        os.environ["JAX_PLATFORMS"] = "cpu"
        return
    processes = current().count
    local_devices = mesh.size(on.axes) // processes
    kind = mesh.device_kind(on)
    if kind == "gpu":
        accelerators.keep_to(local_devices)
    if kind != "cpu":
        return
    os.environ["JAX_PLATFORMS"] = "cpu"
    needed = threads(local_devices)
    already_set = os.environ.get("PJRT_NPROC", "")
    if already_set.isdigit():
        needed = max(needed, int(already_set))
    os.environ["PJRT_NPROC"] = str(needed)
    timeouts = dict(_FLAGS)
    if processes > 1:
        # One process may be behind by as much as `cluster.timeout`, while it compiles or saves. The devices of another
        # must not give up before.
        between = round(timeout)
        timeouts[_TERMINATE] = max(between, timeouts[_TERMINATE])
        timeouts[_BETWEEN_PROCESSES] = between
    _add_xla_flags(timeouts)


def _add_xla_flags(flags: dict[str, int]) -> None:
    """Adds flags that `XLA_FLAGS` does not set yet."""
    already_set = os.environ.get("XLA_FLAGS", "")
    all_flags = already_set.split()
    for flag, value in flags.items():
        # A user's own value of a flag stays.
        if not re.search(rf"{flag}\b", already_set):
            all_flags.append(f"{flag}={value}")
    os.environ["XLA_FLAGS"] = " ".join(all_flags)


def cache_folder() -> str | None:
    """Returns the folder in which compiled programs are kept between runs.

    An entry is native code, and JAX runs it unchecked. So the folder is not among the outputs, which are copied and
    shared, but in the user's cache. None: it can't be made, or others may have written to it.
    """
    try:
        return str(private_cache(_CACHE))
    except OSError as error:
        if error.errno == errno.EPERM and current().is_first:
            problem = f"{error.filename} {error.strerror}, so compiled programs are not cached"
            warn(f"{problem}; set engine.compilation_cache=false to silence this")
        logger.info("compiled programs are not cached: %s %s", error.filename, error.strerror)
        return None

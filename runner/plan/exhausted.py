"""Explains an out-of-memory (OOM) error of a run: the plan's memory by kind, and the smallest change that fits."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from runner.cluster import checks as checks_cluster
from runner.config.schema import ClusterConfig, HardwareConfig, MeshConfig, RunConfig
from runner.engine import make_engine, registry
from runner.errors import OutOfMemoryError
from runner.host.tables import size
from runner.layout import mesh
from runner.plan import changes, host_memory, memory
from runner.plan.base import ARITHMETIC, Change, Forecast, MemoryPart, Plan
from runner.plan.make import memory_parts
from runner.task import registry as task_registry
from runner.task.base import DataSpec

logger = logging.getLogger(__name__)

# Types of errors of libraries, and what their messages contain. XLA's status is RESOURCE_EXHAUSTED; TensorFlow raises
# a type of its own, whose message a distributed call may wrap in another error.
_TYPES = ("ResourceExhaustedError", "MemoryError")
_MESSAGES = ("RESOURCE_EXHAUSTED", "OOM when allocating", "Out of memory allocating", "std::bad_alloc")
_AMOUNT = re.compile(r"allocat\w*(?: of)?(?: tensor of)? ([\d.]+ ?(?:bytes|[KMGT]i?B))", re.IGNORECASE)
# Arrays of a plan on DTensor by the kinds of a plan by arithmetic.
_KINDS = {
    "parameters": memory.WEIGHTS,
    "copies": memory.TEMPORARIES,
    "gradients": memory.GRADIENTS,
    "slots": memory.OPTIMIZER,
    "activations": memory.ACTIVATIONS,
}
# A change has to leave so much of what the failed step needs by the plan: arithmetic is no more exact.
_SHARE = 0.8
_GIB = 1 << 30
_DOCS = "docs/memory.md"


@dataclass
class Attempt:
    """What is known of a run that may run out of memory; without a plan, the memory was too small even to make
    that.
    """

    config: RunConfig
    data: DataSpec
    overrides: Sequence[str]
    plan: Plan | None = None

    @property
    def is_arithmetic(self) -> bool:
        """Returns whether the engine can plan by arithmetic."""
        config = self.config
        return registry.plans_elsewhere(config.engine.name) and not task_registry.entry(config.task).own_step


@contextmanager
def explained(attempt: Attempt) -> Iterator[None]:
    """Turns an out-of-memory error of the body into an `OutOfMemoryError` with the plan's table."""
    try:
        yield
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        logger.exception("the run is out of memory")
        raise _explanation(attempt, error) from error


def is_out_of_memory(error: BaseException) -> bool:
    """Returns whether an error, or one of its causes, says that memory is exhausted."""
    seen = []
    current: BaseException | None = error
    while current is not None and current not in seen:
        seen.append(current)
        text = str(current)
        if type(current).__name__ in _TYPES or any(message in text for message in _MESSAGES):
            return True
        current = current.__cause__ or current.__context__
    return False


def _explanation(attempt: Attempt, error: Exception) -> OutOfMemoryError:
    config = attempt.config
    kind = mesh.device_kind(config.mesh)
    where = f"a {kind.upper()} device of the mesh"
    # Python's own error is of the host's memory, whatever the mesh has.
    if kind == "cpu" or isinstance(error, MemoryError):
        where = "this machine"
    line = f"out of memory (OOM) on {where}"
    amount = _AMOUNT.search(str(error))
    if amount is not None:
        line += f": could not allocate {amount[1]}"
    try:
        parts = _parts(attempt)
        found = _change(attempt, parts)
    except Exception:
        # An explanation must not hide the error that it explains.
        logger.exception("no plan of the run that is out of memory")
        return OutOfMemoryError(f"{line}; see {_DOCS}")
    if not parts:
        return OutOfMemoryError(f"{line}; see {_DOCS}")
    fix = f"see {_DOCS}"
    if found is not None:
        fix = f"try {found.override}"
    return OutOfMemoryError(f"{line}; {fix}", _table(parts, capacity(config.mesh, config.cluster), found))


def capacity(config: MeshConfig, cluster: ClusterConfig) -> int:
    """Returns the bytes of one device that a run can use; 0: not known.

    The virtual devices of a CPU share the machine's memory, or as much of it as the process may take.
    """
    if mesh.device_kind(config) != "cpu":
        return 0
    return host_memory.of_virtual_device(mesh.size(config.axes), checks_cluster.machines(cluster, "cpu"))


def _parts(attempt: Attempt) -> tuple[MemoryPart, ...]:
    """Returns one device's memory by kind: by arithmetic where the engine can, else from the run's plan."""
    if attempt.is_arithmetic:
        # Any size of the memory will do: the parts do not depend on it.
        config = attempt.config
        config = _elsewhere(config, capacity(config.mesh, config.cluster) or _GIB)
        engine = make_engine(config, attempt.data, 1, planning=True)
        engine.build()
        return memory_parts(config, engine, attempt.data)
    if attempt.plan is None:
        return ()
    parts = []
    for name, total in attempt.plan.totals.items():
        parts.append(MemoryPart(_KINDS[name], total.bytes_per_device, total.source))
    return tuple(parts)


def _elsewhere(config: RunConfig, memory_bytes: int) -> RunConfig:
    """Returns the config for a device of this memory that is planned by arithmetic; its rates are not read."""
    hardware = HardwareConfig(
        name="this device",
        kind=mesh.device_kind(config.mesh),
        memory_gib=memory_bytes / _GIB,
        peak_tflops={"float32": 1.0},
        memory_gb_s=1.0,
        link_gb_s=1.0,
    )
    return replace(config, hardware=hardware, plan=replace(config.plan, compiler=ARITHMETIC))


def _change(attempt: Attempt, parts: Sequence[MemoryPart]) -> Change | None:
    """Returns the smallest single change that fits, by arithmetic; None: there is none, or the engine has no plan."""
    if not parts or not attempt.is_arithmetic:
        return None
    room = round(_SHARE * sum(part.bytes for part in parts))
    limit = capacity(attempt.config.mesh, attempt.config.cluster)
    if limit:
        room = min(room, limit)
    config = _elsewhere(attempt.config, room)
    verdict = Forecast(
        hardware=config.hardware.name,
        depth=ARITHMETIC,
        capacity_bytes=room,
        memory=tuple(parts),
        compute_seconds=(0.0, 0.0),
        memory_seconds=0.0,
        link_seconds=0.0,
        step_seconds=(0.0, 0.0),
        bound="",
        examples=config.dataset.batch_size,
        tokens=0,
    )
    found = changes.smallest(config, attempt.data, verdict, parts, attempt.overrides)
    return found[0] if found else None


def _table(parts: Sequence[MemoryPart], limit: int, found: Change | None) -> tuple[str, ...]:
    """Returns the memory of one device by kind as lines of text."""
    cells: list[tuple[str, str, str]] = []
    for part in parts:
        cells.append((part.kind, size(part.bytes), part.source))
    cells.append(("peak by the plan", size(sum(part.bytes for part in parts)), ""))
    if limit:
        cells.append(("memory of a device", size(limit), "an equal share of this machine's"))
    first = max(len(name) for name, _, _ in cells)
    second = max(len(count) for _, count, _ in cells)
    lines = ["memory of one device at the peak of a step:"]
    for name, count, source in cells:
        lines.append(f"  {name:{first}}  {count:>{second}}  {source}".rstrip())
    if found is None:
        lines.append(f"no single change is known to fit; see {_DOCS}")
    else:
        lines.append(f"to fit: {found.override}, {size(found.peak_bytes)} per device (arithmetic)")
    return tuple(lines)

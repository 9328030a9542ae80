"""Checks of `cluster` with the mesh and the engine; see `runner.plan.checks.run`."""

from __future__ import annotations

from runner.cluster import place, restarts
from runner.config.schema import AUTO, ClusterConfig, MeshConfig
from runner.errors import invalid
from runner.host.session import command_module
from runner.layout import mesh

_TRAINS = "runner"
# Keys that `cluster.name` does not use.
_IDLE = {"single": ("processes", "index", "coordinator"), "local": ("index", "coordinator")}


def check(config: ClusterConfig, on: MeshConfig, resume: str | None) -> None:
    """Checks that the processes can share the devices of the mesh evenly; its axes are settled. Raises ConfigError."""
    for key in _IDLE.get(config.name, ()):
        value = getattr(config, key)
        if value is not None:
            problem = f"cluster={config.name} does not use this key"
            raise invalid(f"cluster.{key}", value, problem=problem, fix="remove it, or set cluster=auto or explicit")
    count = place.count(config)
    devices = mesh.size(on.axes)
    if devices % count:
        nearest = max(divisor for divisor in range(1, min(devices, count) + 1) if devices % divisor == 0)
        problem = f"must divide the {devices} devices of the mesh ({mesh.describe(on.axes)})"
        fix = f"set cluster.processes={nearest}, or choose another mesh"
        raise invalid("cluster.processes", count, problem=problem, fix=fix)
    if config.restarts and command_module() == _TRAINS:
        _check_restarts(config, resume)
    if count > 1 and mesh.device_kind(on) == "tpu":
        raise invalid("cluster.processes", count, problem="must be 1 on TPUs", fix="set cluster=single")


def _check_restarts(config: ClusterConfig, resume: str | None) -> None:
    """Checks that something starts the run again, and that it then continues."""
    key = "cluster.restarts"
    value = config.restarts
    if resume is None:
        problem = "needs resume=auto, with which a restart continues the run"
        raise invalid(key, value, problem=problem, fix="add resume=auto name=exp1")
    starts_itself = place.has_launcher(config) or restarts.is_supervised()
    # A recorded run is resumed by hand, as often as it takes.
    if resume == AUTO and not starts_itself:
        where = f"cluster={config.name}"
        if config.name == "local":
            where += " with a single process"
        problem = f"{where} has nothing that starts the run again"
        raise invalid(key, value, problem=problem, fix="write python -m runner.supervise -- before the command")
    # The folders above the run's may have an @ in their names.
    names_checkpoint = "@" in resume.rpartition("/")[2]
    if names_checkpoint and starts_itself:
        problem = f"names a checkpoint, to which each restart would return ({key}={value})"
        raise invalid("resume", resume, problem=problem, fix=f"set {key}=0")


def machines(config: ClusterConfig, kind: str) -> int:
    """Returns how many times the devices of a kind that this process sees are in the mesh.

    Processes of `cluster=local` share the devices of this machine, except for accelerators that the launcher has
    already divided between them.
    """
    count = place.count(config)
    is_local = config.name == "local"
    sees_all = kind == "cpu" or place.from_launcher() is None
    return 1 if is_local and sees_all else count

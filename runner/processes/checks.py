"""Checks of `cluster`, by itself and against the mesh; see `runner.checks.run`."""

from __future__ import annotations

import os
from collections.abc import Collection

from runner.config.schema import ClusterConfig, RunConfig
from runner.errors import invalid
from runner.host.commands import command_module
from runner.layout import mesh
from runner.processes import place

_STARTS_NOTHING = ("runner.plan", "runner.data")


def check(config: RunConfig, port_openers: Collection[str]) -> None:
    """Checks the group, and that the processes share the mesh's devices out evenly; axes are resolved.

    Args:
      config: its mesh has sizes.
      port_openers: names of the engines whose processes listen on all network interfaces.

    Raises:
      ConfigError: the first thing found that cannot work.
    """
    count = place.count(config.cluster)
    devices = mesh.size(config.mesh.axes)
    if devices % count:
        raise invalid(
            "cluster.processes",
            count,
            problem=f"a divisor of the mesh's {devices} devices ({mesh.describe(config.mesh.axes)})",
            fix=f"set cluster.processes={_divisor(devices, count)}, or another mesh",
        )
    if config.cluster.requeue:
        if "SLURM_JOB_ID" not in os.environ and not place.is_presumed():
            raise invalid(
                "cluster.requeue", True, problem="a job of Slurm's, and this is none", fix="set cluster.requeue=false"
            )
        if not config.trainer.checkpoint.enabled:
            raise invalid(
                "cluster.requeue",
                True,
                problem="a run that saves checkpoints, which it goes on from",
                fix="set trainer.checkpoint.enabled=true",
            )
    if count > 1 and mesh.device_kind(config.mesh) == "tpu":
        raise invalid("cluster.processes", count, problem="1 on TPUs", fix="use cluster=single")
    if count > 1 and command_module() not in _STARTS_NOTHING:
        _check_ports(config, port_openers)


def _check_ports(config: RunConfig, port_openers: Collection[str]) -> None:
    """Rejects DTensor in several processes, unless the user accepts what its ports allow.

    TensorFlow's servers ignore the address that they are given and listen on all interfaces. They authenticate nobody
    and run every graph that they are sent, which may read and write the user's files.
    """
    engines = [config.engine.name]
    if config.against.engine is not None and config.against.processes is None:
        engines.append(config.against.engine)
    exposed = [name for name in engines if name in port_openers]
    if not exposed or config.cluster.open_ports:
        return
    key = "engine" if exposed[0] == config.engine.name else "against.engine"
    raise invalid(
        "cluster.open_ports",
        False,
        problem=f"{key}={exposed[0]} in several processes opens ports of TensorFlow on all network interfaces, and "
        "whoever reaches them runs code as you",
        fix=f"use {key}=jax, or set cluster.open_ports=true if you trust every user and machine that reaches them",
    )


def machines(config: ClusterConfig, kind: str) -> int:
    """Returns how many times this process's devices of a kind are there in all.

    Processes of `cluster=local` share this machine's devices; our launcher has dealt the accelerators out to them.
    """
    count = place.count(config)
    shares = config.name == "local"
    return 1 if shares and (kind == "cpu" or place.from_launcher() is None) else count


def _divisor(devices: int, count: int) -> int:
    return max(each for each in range(1, min(devices, count) + 1) if devices % each == 0)

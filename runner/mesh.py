"""The arithmetic of a mesh's axes, and how many devices are there; each engine makes its own mesh of it."""

from __future__ import annotations

import math
import os
import re
from pathlib import Path

from runner.config.errors import refuse
from runner.config.schema import MeshConfig

DEVICES = ("cpu", "gpu", "tpu", "auto")
_MOST_CPU_DEVICES = 256


def device_kind(config: MeshConfig) -> str:
    """Returns `cpu`, `gpu` or `tpu`: the config's kind, with `auto` settled by what this machine has."""
    if config.device != "auto":
        return config.device
    return next((kind for kind in ("tpu", "gpu") if _accelerators(kind)), "cpu")


def device_count(config: MeshConfig) -> int:
    """Returns how many devices of the mesh's kind are there, without importing TensorFlow or JAX."""
    kind = device_kind(config)
    return config.cpu_devices if kind == "cpu" else _accelerators(kind)


def _accelerators(kind: str) -> int:
    if kind == "tpu":
        return len(list(Path("/dev").glob("accel[0-9]*")))
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return len([part for part in visible.split(",") if part.strip() and part.strip() != "-1"])
    return len([node for node in Path("/dev").glob("nvidia*") if re.fullmatch(r"nvidia\d+", node.name)])


def resolve_axes(config: MeshConfig, machines: int = 1) -> dict[str, int]:
    """Checks the axes and settles a size of -1.

    Args:
      config: the mesh group.
      machines: how many times this process's devices are there in all.

    Returns:
      Axis name to size, in order, every size at least 1.

    Raises:
      ConfigError: no axes, a bad name or size, or more devices than there are.
    """
    if config.device not in DEVICES:
        raise refuse("mesh.device", config.device, allowed=f"one of {', '.join(DEVICES)}", mend="set mesh.device=cpu")
    if not 1 <= config.cpu_devices <= _MOST_CPU_DEVICES:
        raise refuse(
            "mesh.cpu_devices", config.cpu_devices, allowed=f"1 to {_MOST_CPU_DEVICES}", mend="set mesh.cpu_devices=8"
        )
    if not config.axes:
        raise refuse("mesh.axes", "{}", allowed="at least one axis", mend="set mesh=single or mesh.axes.batch=8")
    for name, size in config.axes.items():
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
            raise refuse(
                f"mesh.axes.{name}",
                size,
                allowed="names of letters, digits and _",
                mend="rename it, as mesh.axes.batch=8",
            )
        if size < 1 and size != -1:
            raise refuse(
                f"mesh.axes.{name}",
                size,
                allowed="a size of at least 1, or -1 for the rest of the devices",
                mend=f"set mesh.axes.{name}=1 or more",
            )
    devices = device_count(config) * machines
    if not devices:
        kind = device_kind(config)
        raise refuse("mesh.device", config.device, allowed=f"no {kind} is there", mend="set mesh.device=cpu")
    return _fit(config, devices)


def _fit(config: MeshConfig, devices: int) -> dict[str, int]:
    free = [name for name, size in config.axes.items() if size == -1]
    fixed = math.prod(size for size in config.axes.values() if size != -1)
    kind = device_kind(config)
    if len(free) > 1:
        raise refuse(
            f"mesh.axes.{free[1]}", -1, allowed=f"one axis may be -1, and {free[0]} is", mend="give one of them a size"
        )
    if fixed > devices:
        grow = f", or set mesh.cpu_devices={fixed}" if kind == "cpu" and fixed <= _MOST_CPU_DEVICES else ""
        shown = "{" + ",".join(f"{name}:{size}" for name, size in config.axes.items()) + "}"
        raise refuse(
            "mesh.axes",
            shown,
            allowed=f"{fixed} devices are asked for, {devices} of kind {kind} are there",
            mend=f"choose a smaller mesh{grow}",
        )
    if free and devices % fixed:
        raise refuse(
            f"mesh.axes.{free[0]}",
            -1,
            allowed=f"the other axes ({fixed}) must divide the {devices} devices there",
            mend=f"set mesh.axes.{free[0]}={devices // fixed}",
        )
    return {name: devices // fixed if size == -1 else size for name, size in config.axes.items()}


def columns(axes: dict[str, int], axis: str, process: int, processes: int) -> list[int]:
    """Returns the places along an axis that one process's devices have.

    Args:
      axes: mesh axis to size; devices are numbered row-major, and shared out to the processes in that order.
      axis: one of them.
      process: its number.
      processes: how many there are.
    """
    own = size(axes) // processes
    inner = math.prod(list(axes.values())[list(axes).index(axis) + 1 :])
    return sorted({number // inner % axes[axis] for number in range(process * own, (process + 1) * own)})


def crossing(axes: dict[str, int], processes: int) -> list[str]:
    """Returns the axes along which neighbours may be in different processes; devices are numbered as in `columns`."""
    own = size(axes) // processes
    found, inner = [], 1
    for name, count in reversed(axes.items()):
        if count > 1 and own % (inner * count):
            found.append(name)
        inner *= count
    return found[::-1]


def size(axes: dict[str, int]) -> int:
    """Returns the number of devices of a mesh."""
    return math.prod(axes.values())


def describe(axes: dict[str, int]) -> str:
    """Returns the axes in the form `batch=4 model=2`."""
    return " ".join(f"{name}={count}" for name, count in axes.items())

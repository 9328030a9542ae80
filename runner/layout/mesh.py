"""The arithmetic of a mesh's axes; each engine makes its own mesh of it."""

from __future__ import annotations

import math
import re

from runner.config.schema import MeshConfig
from runner.errors import invalid

DEVICES = ("cpu", "gpu", "tpu", "auto")
_MOST_CPU_DEVICES = 256


def device_kind(config: MeshConfig) -> str:
    """Returns `cpu`, `gpu` or `tpu`; `runner.engine.devices` has settled `auto`, else it is the CPU."""
    return "cpu" if config.device == "auto" else config.device


def check(config: MeshConfig) -> None:
    """Checks the group by itself.

    Raises:
      ConfigError: no axes, a bad name or size, or no such kind of device.
    """
    if config.device not in DEVICES:
        raise invalid("mesh.device", config.device, problem=f"one of {', '.join(DEVICES)}", fix="set mesh.device=cpu")
    if not 1 <= config.cpu_devices <= _MOST_CPU_DEVICES:
        raise invalid(
            "mesh.cpu_devices", config.cpu_devices, problem=f"1 to {_MOST_CPU_DEVICES}", fix="set mesh.cpu_devices=8"
        )
    if not config.axes:
        raise invalid("mesh.axes", "{}", problem="at least one axis", fix="set mesh=single or mesh.axes.batch=8")
    for name, size in config.axes.items():
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
            raise invalid(
                f"mesh.axes.{name}",
                size,
                problem="names of letters, digits and _",
                fix="rename it, as mesh.axes.batch=8",
            )
        if size < 1 and size != -1:
            raise invalid(
                f"mesh.axes.{name}",
                size,
                problem="a size of at least 1, or -1 for the rest of the devices",
                fix=f"set mesh.axes.{name}=1 or more",
            )


def resolve_axes(config: MeshConfig, devices: int | None = None) -> dict[str, int]:
    """Checks the group and settles a size of -1.

    Args:
      config: the mesh group.
      devices: how many of its kind there are, in all processes; null: as many as the CPU may be split into.

    Returns:
      Axis name to size, in order, every size at least 1.

    Raises:
      ConfigError: see `check`; or more devices than there are.
    """
    check(config)
    return _fit(config, config.cpu_devices if devices is None else devices)


def _fit(config: MeshConfig, devices: int) -> dict[str, int]:
    free = [name for name, size in config.axes.items() if size == -1]
    fixed = math.prod(size for size in config.axes.values() if size != -1)
    kind = device_kind(config)
    if len(free) > 1:
        raise invalid(
            f"mesh.axes.{free[1]}", -1, problem=f"one axis may be -1, and {free[0]} is", fix="give one of them a size"
        )
    if free and not devices:  # of a plan
        axis = free[0]
        unit = kind.upper()
        raise invalid(f"mesh.axes.{axis}", -1, problem=f"no {unit} is here to take", fix=f"set mesh.axes.{axis}=8")
    if fixed > devices:
        grow = f", or set mesh.cpu_devices={fixed}" if fixed <= _MOST_CPU_DEVICES else ""
        grow = grow if kind == "cpu" else ", or set mesh.device=cpu"
        shown = "{" + ",".join(f"{name}:{size}" for name, size in config.axes.items()) + "}"
        raise invalid(
            "mesh.axes",
            shown,
            problem=f"{fixed} devices are asked for, {devices} of kind {kind} are there",
            fix=f"choose a smaller mesh{grow}",
        )
    if free and devices % fixed:
        raise invalid(
            f"mesh.axes.{free[0]}",
            -1,
            problem=f"the other axes ({fixed}) must divide the {devices} devices there",
            fix=f"set mesh.axes.{free[0]}={devices // fixed}",
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
    """Returns the axes along which neighbors may be in different processes; devices are numbered as in `columns`."""
    own = size(axes) // processes
    found = []
    inner = 1
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

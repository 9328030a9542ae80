"""Axes of a mesh and their sizes; each engine creates its own mesh from them."""

from __future__ import annotations

import math
from collections.abc import Mapping

from runner.config.schema import MOST_CPU_DEVICES, REST, MeshConfig
from runner.errors import ConfigError, invalid
from runner.layout.axes import names_of


def device_kind(config: MeshConfig) -> str:
    """Returns `cpu`, `gpu` or `tpu`; `auto` means the CPU unless `runner.engine.devices` has resolved it."""
    if config.device == "auto":
        return "cpu"
    return config.device


def resolve_axes(config: MeshConfig, available: int) -> dict[str, int]:
    """Returns the sizes of the axes, in order, with a size of -1 resolved.

    `available` devices are those of all processes.

    Raises:
      ConfigError: no axes, more devices than there are, or a size of -1 that can't be resolved.
    """
    if not config.axes:
        raise invalid("mesh.axes", "{}", problem="needs at least one axis", fix="set mesh=single or mesh.axes.batch=8")
    rest_axes = []
    # The product of the given sizes: as many devices are needed, or a multiple of it if one axis takes the rest.
    needed = 1
    for name, axis_size in config.axes.items():
        if axis_size == REST:
            rest_axes.append(name)
        else:
            needed *= axis_size
    kind = device_kind(config)
    if len(rest_axes) > 1:
        problem = f"only one axis may be {REST}, but {rest_axes[0]} is too"
        raise invalid(f"mesh.axes.{rest_axes[1]}", REST, problem=problem, fix="give one of them a size")
    rest_axis = next(iter(rest_axes), None)
    if rest_axis is not None and not available:
        # A plan needs no devices, so there may be none.
        key = f"mesh.axes.{rest_axis}"
        raise invalid(key, REST, problem=f"there is no {kind.upper()} here to count", fix=f"set {key}=8")
    if needed > available:
        raise _too_few_devices(config, needed, available)
    if rest_axis is not None and available % needed:
        key = f"mesh.axes.{rest_axis}"
        problem = f"the other axes ({needed}) must divide the {available} devices"
        raise invalid(key, REST, problem=problem, fix=f"set {key}={available // needed}")
    axes = dict(config.axes)
    if rest_axis is not None:
        axes[rest_axis] = available // needed
    return axes


def _too_few_devices(config: MeshConfig, needed: int, available: int) -> ConfigError:
    kind = device_kind(config)
    fix = "choose a smaller mesh"
    if kind != "cpu":
        fix += ", or set mesh.device=cpu"
    elif needed <= MOST_CPU_DEVICES:
        fix += f", or set mesh.cpu_devices={needed}"
    noun = "devices are"
    if available == 1:
        noun = "device is"
    problem = f"needs {needed} devices, but only {available} {kind.upper()} {noun} available"
    return invalid("mesh.axes", braced(config.axes), problem=problem, fix=fix)


def columns(axes: dict[str, int], axis: str, process: int, processes: int) -> list[int]:
    """Returns the indexes along an axis, or several joined by `+`, that the devices of one process have.

    Devices are numbered row-major, and divided among the processes in that order.
    """
    own = size(axes) // processes
    indexes = set()
    for device in range(process * own, (process + 1) * own):
        index = 0
        for name in names_of(axis):
            position = list(axes).index(name)
            # Consecutive devices with the same index along the axis.
            inner = math.prod(list(axes.values())[position + 1 :])
            index = index * axes[name] + device // inner % axes[name]
        indexes.add(index)
    return sorted(indexes)


def crossing(axes: dict[str, int], processes: int) -> list[str]:
    """Returns the axes along which neighbors may be in different processes; devices are numbered as in `columns`."""
    own = size(axes) // processes
    crossing_axes = []
    inner = 1
    for name, count in reversed(axes.items()):
        # A process with a multiple of inner * count consecutive devices has the whole axis.
        if count > 1 and own % (inner * count):
            crossing_axes.append(name)
        inner *= count
    crossing_axes.reverse()
    return crossing_axes


def size(axes: dict[str, int]) -> int:
    """Returns the number of devices of a mesh."""
    return math.prod(axes.values())


def braced(axes: Mapping[str, int]) -> str:
    """Returns the axes in the form `{batch:4,model:2}`."""
    pairs = ",".join(f"{name}:{count}" for name, count in axes.items())
    return f"{{{pairs}}}"


def override(axes: Mapping[str, int]) -> str:
    """Returns the axes as on a command line, in quotes: a shell would make two words of the braces."""
    return f"'mesh.axes={braced(axes)}'"


def describe(axes: dict[str, int]) -> str:
    """Returns the axes in the form `batch=4 model=2`."""
    return " ".join(f"{name}={count}" for name, count in axes.items())

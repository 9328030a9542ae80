"""Mesh config -> how many devices -> the process's environment -> a mesh of the engine."""

from __future__ import annotations

import math
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runner.config.errors import refuse
from runner.config.schema import MeshConfig
from runner.host import cores

if TYPE_CHECKING:
    from jax.sharding import Mesh as JaxMesh
    from tensorflow.experimental import dtensor

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


def resolve_axes(config: MeshConfig) -> dict[str, int]:
    """Checks the axes and settles a size of -1.

    Args:
      config: the mesh group.

    Returns:
      Axis name to size, in order, every size at least 1.

    Raises:
      ConfigError: no axes, a bad name or size, or more devices than there are.
    """
    if config.device not in DEVICES:
        raise refuse("mesh.device", config.device, allowed=f"one of {', '.join(DEVICES)}", mend="set mesh.device=cpu")
    if not 1 <= config.cpu_devices <= _MOST_CPU_DEVICES:
        raise refuse(
            "mesh.cpu_devices",
            config.cpu_devices,
            allowed=f"1 to {_MOST_CPU_DEVICES}",
            mend="set mesh.cpu_devices=8",
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
    devices = device_count(config)
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


def size(axes: dict[str, int]) -> int:
    """Returns the number of devices of a mesh."""
    return math.prod(axes.values())


def describe(axes: dict[str, int]) -> str:
    """Returns the axes in the form `batch=4 model=2`."""
    return " ".join(f"{name}={count}" for name, count in axes.items())


def configure_dtensor(config: MeshConfig, threads: int | None) -> dtensor.Mesh:
    """Makes the logical devices and the DTensor mesh. Must be the process's first use of TensorFlow's devices.

    Args:
      config: the mesh group, axes resolved.
      threads: threads for one operation; null divides the cores among the CPU devices.

    Returns:
      The mesh, its axes in the config's order.

    Raises:
      RuntimeError: TensorFlow's devices were already made (from TensorFlow).
    """
    import tensorflow as tf
    from tensorflow.experimental import dtensor as dt

    kind, count = device_kind(config).upper(), size(config.axes)
    physical: list[Any] = tf.config.list_physical_devices(kind)
    if kind == "CPU":
        logical = [tf.config.LogicalDeviceConfiguration()] * count
        tf.config.set_logical_device_configuration(physical[0], logical)
        tf.config.threading.set_intra_op_parallelism_threads(threads or max(1, cores.available() // count))
    elif len(physical) < count:
        raise refuse(
            "mesh.device",
            config.device,
            allowed=f"TensorFlow sees {len(physical)} of kind {kind}",
            mend="use mesh.device=cpu",
        )
    return dt.create_mesh(list(config.axes.items()), devices=[f"{kind}:{i}" for i in range(count)])


def first_device_alone(made: dtensor.Mesh) -> dtensor.Mesh:
    """Returns a mesh as one of several clients has it that owns the first of its devices only.

    A program made for it is that of the whole mesh, but lies on one device; putting it on every device is most of a
    compilation. It is there to be read: where it communicates, it would wait for the other devices for ever.

    Args:
      made: mesh whose devices are all this process's.
    """
    from tensorflow.experimental import dtensor as dt

    return dt.Mesh(list(made.dim_names), made.global_device_ids(), [0], made.local_devices()[:1])


def configure_jax(config: MeshConfig) -> JaxMesh:
    """Makes the virtual devices and the JAX mesh. Must be the process's first use of JAX's devices.

    Args:
      config: the mesh group, axes resolved.

    Returns:
      The mesh, its axes in the config's order, its devices numbered row-major.

    Raises:
      ConfigError: JAX sees fewer devices of that kind.
      RuntimeError: JAX's devices were already made (from JAX).
    """
    import jax
    import numpy as np

    kind, count = device_kind(config), size(config.axes)
    if kind == "cpu" and not _has_devices(count):
        jax.config.update("jax_num_cpu_devices", count)
    try:
        devices = jax.devices(kind)
    except RuntimeError:  # a JAX without support for the kind
        devices = []
    if len(devices) < count:
        raise refuse(
            "mesh.device",
            config.device,
            allowed=f"JAX sees {len(devices)} of kind {kind}, {count} are asked for",
            mend="use mesh.device=cpu, or install JAX for that kind, as pip install 'jax[cuda12]'",
        )
    # Not jax.make_mesh: its axes are explicit by default, and Keras's layers give no output shardings.
    return jax.sharding.Mesh(np.array(devices[:count]).reshape(list(config.axes.values())), tuple(config.axes))


def _has_devices(count: int) -> bool:
    """Tells whether this process has made its JAX devices already, and enough of them."""
    from jax._src import xla_bridge

    if not xla_bridge.backends_are_initialized():
        return False
    import jax

    return len(jax.devices("cpu")) >= count

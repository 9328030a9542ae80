"""The DTensor mesh of a config, and how layers lay tensors on it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import tensorflow as tf
from tensorflow.experimental import dtensor

from runner.config.schema import MeshConfig
from runner.engine.accelerated import INSTALLS
from runner.engine.dtensor import processes
from runner.engine.dtensor.arrays import layout_of
from runner.engine.dtensor.environment import merge_all_reduces
from runner.errors import invalid
from runner.host import cores
from runner.layout import mesh
from runner.model.scope import Spec
from runner.processes.team import current


def make_devices(config: MeshConfig, threads: int | None) -> list[str]:
    """Makes this process's devices of a mesh. Must be the process's first use of TensorFlow's devices.

    Args:
      config: the mesh group, axes resolved.
      threads: threads for one operation; null divides the cores among the CPU devices.

    Returns:
      Their names, in the order of `make_mesh`.

    Raises:
      ConfigError: TensorFlow sees fewer devices of that kind.
      RuntimeError: TensorFlow's devices were already made (from TensorFlow).
    """
    team = current()
    kind = mesh.device_kind(config).upper()
    count = mesh.size(config.axes) // team.count
    physical = tf.config.list_physical_devices(kind)
    if kind == "CPU":
        logical = [tf.config.LogicalDeviceConfiguration()] * count
        tf.config.set_logical_device_configuration(physical[0], logical)
        tf.config.threading.set_intra_op_parallelism_threads(threads or max(1, cores.available() // count))
    elif len(physical) < count:
        raise invalid(
            "mesh.device",
            config.device,
            problem=f"TensorFlow sees {len(physical)} of kind {config.device}, {count} are asked for",
            fix=f"{INSTALLS['tensorflow', 'gpu']} and see what its log says of the driver, or set mesh.device=cpu",
        )
    elif team.count > 1:
        tf.config.set_visible_devices(physical[:count], kind)  # a mesh of several processes takes all that are seen
    processes.connect(team, kind)
    return [f"{kind}:{i}" for i in range(count)]


def make_mesh(config: MeshConfig, devices: Sequence[str], *, merges: bool) -> dtensor.Mesh:
    """Makes DTensor's device and a mesh on it.

    Args:
      config: the mesh group, axes resolved.
      devices: of `make_devices`.
      merges: whether DTensor merges all-reduces in what it compiles from now on, if this is the process's first mesh.

    Returns:
      The mesh, its axes in the config's order.
    """
    merge_all_reduces(merges)
    if current().count > 1:
        return dtensor.create_distributed_mesh(list(config.axes.items()), device_type=devices[0].partition(":")[0])
    return dtensor.create_mesh(list(config.axes.items()), devices=list(devices))


def first_device_alone(made: dtensor.Mesh) -> dtensor.Mesh:
    """Returns a mesh as one of several clients has it that owns the first of its devices only.

    A program made for it is that of the whole mesh, but lies on one device; putting it on every device is most of a
    compilation. It is there to be read: where it communicates, it would wait for the other devices for ever.

    Args:
      made: mesh whose devices are all this process's.
    """
    return dtensor.Mesh(list(made.dim_names), made.global_device_ids(), [0], made.local_devices()[:1])


@dataclass(frozen=True)
class MeshPlacer:
    """Lays tensors on a DTensor mesh; see `runner.model.scope.Placer`."""

    mesh: dtensor.Mesh

    def size(self, axis: str) -> int:
        """Returns the size of a mesh axis."""
        return int(self.mesh.dim_size(axis))

    def lay(self, x: tf.Tensor, spec: Spec, back: Spec | None) -> tf.Tensor:
        """Returns `x` split as a spec says; with `back`, its gradient as that says."""

        def placed(value: tf.Tensor, wanted: Spec) -> tf.Tensor:
            return dtensor.relayout(value, layout_of(wanted, self.mesh))

        if back is None:
            return placed(x, spec)
        returned = back
        caller = tf.get_current_name_scope()

        @tf.custom_gradient  # type: ignore[untyped-decorator]
        def both(value: tf.Tensor) -> tf.Tensor:
            def back_again(gradient: tf.Tensor) -> tf.Tensor:
                with tf.name_scope(f"gradient_tape/{caller}/"):  # as a tape names what it makes, for the plan
                    return placed(placed(gradient, spec), returned)

            return placed(placed(value, returned), spec), back_again

        return both(x)

    def axis(self, kernel: tf.Variable, dim: int) -> str | None:
        """Returns the axis that splits a dim of a kernel, as layers read it; None of a plain variable."""
        layout = getattr(kernel, "use_layout", None) or getattr(kernel, "layout", None)
        axis = dtensor.UNSHARDED if layout is None else layout.sharding_specs[dim]
        return None if axis == dtensor.UNSHARDED else str(axis)

"""TensorFlow's devices, and the sharding of layers' tensors on a mesh of them."""

from __future__ import annotations

from dataclasses import dataclass

import tensorflow as tf
from tensorflow.experimental import dtensor

from runner.config.schema import MeshConfig
from runner.engine.dtensor.arrays import layout_of, spec_of
from runner.host import cores
from runner.layout import mesh
from runner.model.scope import Spec


def prepare_devices(config: MeshConfig) -> list[str]:
    """Creates a mesh's virtual CPU devices, before TensorFlow's first computation; returns their names in order."""
    count = mesh.size(config.axes)
    logical = [tf.config.LogicalDeviceConfiguration()] * count
    tf.config.set_logical_device_configuration(tf.config.list_physical_devices("CPU")[0], logical)
    # All virtual devices compute at once, so they share the cores.
    tf.config.threading.set_intra_op_parallelism_threads(max(1, cores.available() // count))
    return [f"CPU:{index}" for index in range(count)]


@dataclass(frozen=True)
class MeshPlacer:
    """Shards tensors on a DTensor mesh; see `runner.model.scope.Placer`."""

    mesh: dtensor.Mesh

    def lay(self, x: tf.Tensor, spec: Spec) -> tf.Tensor:
        """Returns `x` sharded by `spec`."""
        return dtensor.relayout(x, layout_of(spec, self.mesh))

    def axis(self, kernel: tf.Variable, dim: int) -> str | None:
        """Returns the axis that shards a dim of a kernel, as layers read it; None for a plain variable."""
        layout = getattr(kernel, "use_layout", None) or getattr(kernel, "layout", None)
        if layout is None:
            return None
        return spec_of(layout)[dim]

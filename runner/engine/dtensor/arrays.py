"""Host arrays to and from a DTensor mesh, shard by shard.

TensorFlow's own `tf.split` + `dtensor.pack` is right on a mesh of one axis only: on 4x2 devices it gives a batch of
half the size, without an error. `pack_part` slices by each device's place in the mesh, which is right on every mesh.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import tensorflow as tf
from numpy.typing import DTypeLike
from tensorflow.experimental import dtensor

from runner.data.base import Array
from runner.engine.base import Shard, part_of, shape_of
from runner.engine.dtensor.variable_reads import read_stored
from runner.layout import Spec


def layout_of(spec: Sequence[str | None], mesh: dtensor.Mesh) -> dtensor.Layout:
    """Returns the DTensor layout of a spec, one entry per dim: a mesh axis, or None."""
    return dtensor.Layout([axis or dtensor.UNSHARDED for axis in spec], mesh)


def pack(array: Array, layout: dtensor.Layout) -> tf.Tensor:
    """Shards a host array over the mesh; see `pack_part`."""
    return pack_part({"": array}, "", array.dtype, layout)


def pack_part(state: Mapping[str, Array], path: str, dtype: DTypeLike, layout: dtensor.Layout) -> tf.Tensor:
    """Shards a whole array of a state over the mesh; a ValueError if an axis does not divide its dim."""
    mesh = layout.mesh
    shard_shape = []
    for dim, axis in zip(shape_of(state, path), layout.sharding_specs, strict=True):
        if axis == dtensor.UNSHARDED:
            shard_shape.append(dim)
            continue
        axis_size = mesh.dim_size(axis)
        if dim % axis_size:
            raise ValueError(f"axis {axis!r} of size {axis_size} does not divide a dim of {dim}")
        shard_shape.append(dim // axis_size)
    pieces = []
    for place in mesh.local_device_locations():
        piece = part_of(state, path, _slices(shard_shape, layout, place))
        # Always a copy: DTensor may read the memory after this call, when the caller has reused it. `np.array` and not
        # `np.ascontiguousarray`, which would give arrays of rank 0 a dim.
        pieces.append(np.array(piece, dtype, order="C"))
    return dtensor.pack(pieces, layout)


def spec_of(layout: dtensor.Layout) -> Spec:
    """Returns the spec of a DTensor layout, the inverse of `layout_of`."""
    return tuple(None if axis == dtensor.UNSHARDED else axis for axis in layout.sharding_specs)


def host_values(variables: Mapping[str, tf.Variable]) -> dict[str, Array]:
    """Returns the values of variables of one device, by path."""
    return {path: variable.numpy() for path, variable in variables.items()}


def unpack(tensor: tf.Tensor | tf.Variable) -> Array:
    """Returns the whole host array of a DTensor or DVariable."""
    value = tensor
    if isinstance(tensor, tf.Variable):
        value = read_stored(tensor)
    layout = dtensor.fetch_layout(value)
    whole: Array = np.empty(tuple(value.shape), value.dtype.as_numpy_dtype)
    for place, shard in zip(layout.mesh.local_device_locations(), dtensor.unpack(value), strict=True):
        whole[_slices(shard.shape, layout, place)] = shard.numpy()
    return whole


def shards(value: tf.Tensor) -> list[Shard]:
    """Returns the distinct shards of a DTensor, each as a copy from the first device of the mesh that has it."""
    layout = dtensor.fetch_layout(value)
    whole_shape = tuple(value.shape)
    distinct: list[Shard] = []
    for place, shard in zip(layout.mesh.local_device_locations(), dtensor.unpack(value), strict=True):
        # Devices that differ only along axes that shard nothing hold the same values; the one at 0 is the first.
        is_replica = any(index for axis, index in place.items() if axis not in layout.sharding_specs)
        if is_replica:
            continue
        start = _start(shard.shape, layout, place)
        distinct.append(Shard(start, np.array(shard.numpy()), whole_shape))
    return distinct


def _start(shard_shape: Sequence[int], layout: dtensor.Layout, place: dict[str, int]) -> tuple[int, ...]:
    """Returns the index of a device's first entry in each dim, at its place: mesh axis -> index along it."""
    starts = []
    for size, axis in zip(shard_shape, layout.sharding_specs, strict=True):
        start = 0
        if axis != dtensor.UNSHARDED:
            start = place[axis] * size
        starts.append(start)
    return tuple(starts)


def _slices(shard_shape: Sequence[int], layout: dtensor.Layout, place: dict[str, int]) -> tuple[slice, ...]:
    starts = _start(shard_shape, layout, place)
    return tuple(slice(start, start + size) for start, size in zip(starts, shard_shape, strict=True))


def zeros(like: dtensor.DVariable) -> dtensor.DVariable:
    """Returns a DVariable of zeros with a variable's shape, dtype and layout."""
    value = dtensor.call_with_layout(tf.zeros, like.layout, shape=like.shape, dtype=like.dtype)
    return dtensor.DVariable(value, trainable=False)

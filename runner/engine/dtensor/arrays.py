"""Arrays in and out of a DTensor mesh, piece by piece: right on every mesh, where TensorFlow's own helpers are not."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import tensorflow as tf
from tensorflow.experimental import dtensor

from runner.data.base import Array
from runner.engine.base import Shard
from runner.engine.dtensor.variable_reads import read_stored


def layout_of(spec: Sequence[str | None], mesh: dtensor.Mesh) -> dtensor.Layout:
    """Returns the DTensor layout of a spec, one entry a dim: a mesh axis, or None."""
    return dtensor.Layout([axis or dtensor.UNSHARDED for axis in spec], mesh)


def pack(array: Array, layout: dtensor.Layout) -> tf.Tensor:
    """Splits a host array over the mesh, whatever dims the layout shards, multi-client meshes included.

    Args:
      array: whole array; every sharded dim must be divisible by its axis.
      layout: DTensor layout of the array's rank.

    Returns:
      A DTensor of that layout.

    Raises:
      ValueError: a dim that its axis does not divide.
    """
    mesh, specs = layout.mesh, layout.sharding_specs
    for dim, spec in zip(array.shape, specs, strict=True):
        if spec != dtensor.UNSHARDED and dim % mesh.dim_size(spec):
            raise ValueError(f"axis {spec!r} of size {mesh.dim_size(spec)} does not divide a dim of {dim}")
    sizes = [
        dim if spec == dtensor.UNSHARDED else dim // mesh.dim_size(spec)
        for dim, spec in zip(array.shape, specs, strict=True)
    ]
    pieces = [array[_slices(sizes, layout, place)] for place in mesh.local_device_locations()]
    return dtensor.pack([np.array(piece, order="C") for piece in pieces], layout)  # copies, of rank 0 too


def unpack(tensor: tf.Tensor | tf.Variable) -> Array:
    """Returns the whole host array of a DTensor or DVariable, put together from its shards (single-client meshes)."""
    value = read_stored(tensor) if isinstance(tensor, tf.Variable) else tensor
    layout = dtensor.fetch_layout(value)
    whole: Array = np.empty(tuple(value.shape), value.dtype.as_numpy_dtype)
    for place, shard in zip(layout.mesh.local_device_locations(), dtensor.unpack(value), strict=True):
        whole[_slices(shard.shape, layout, place)] = shard.numpy()
    return whole


def shards(value: tf.Tensor) -> list[Shard]:
    """Returns the different pieces of a DTensor, copied from the first device that holds each."""
    layout, whole = dtensor.fetch_layout(value), tuple(value.shape)
    found: dict[tuple[int, ...], Shard] = {}
    for place, shard in zip(layout.mesh.local_device_locations(), dtensor.unpack(value), strict=True):
        start = _start(shard.shape, layout, place)
        if start not in found:
            found[start] = Shard(start, np.array(shard.numpy()), whole)
    return list(found.values())


def _start(shape: Sequence[int], layout: dtensor.Layout, place: dict[str, int]) -> tuple[int, ...]:
    """Returns where a device's piece of a shape begins in the whole."""
    return tuple(
        0 if spec == dtensor.UNSHARDED else place[spec] * size
        for size, spec in zip(shape, layout.sharding_specs, strict=True)
    )


def _slices(shape: Sequence[int], layout: dtensor.Layout, place: dict[str, int]) -> tuple[slice, ...]:
    return tuple(slice(at, at + size) for at, size in zip(_start(shape, layout, place), shape, strict=True))


def zeros(like: dtensor.DVariable) -> dtensor.DVariable:
    """Returns a DVariable of zeros with a variable's shape, dtype and layout."""
    value = dtensor.call_with_layout(tf.zeros, like.layout, shape=like.shape, dtype=like.dtype)
    return dtensor.DVariable(value, trainable=False)

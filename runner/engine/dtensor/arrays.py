"""Arrays in and out of a DTensor mesh, piece by piece: right on every mesh, where TensorFlow's own helpers are not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import tensorflow as tf
from numpy.typing import DTypeLike
from tensorflow.experimental import dtensor

from runner.data.base import Array
from runner.engine.base import Shard, part_of, shape_of
from runner.engine.dtensor import processes
from runner.engine.dtensor.variable_reads import read_stored


def layout_of(spec: Sequence[str | None], mesh: dtensor.Mesh) -> dtensor.Layout:
    """Returns the DTensor layout of a spec, one entry a dim: a mesh axis, or None."""
    return dtensor.Layout([axis or dtensor.UNSHARDED for axis in spec], mesh)


def pack(array: Array, layout: dtensor.Layout) -> tf.Tensor:
    """Splits a host array over the mesh; see `pack_part`."""
    return pack_part({"": array}, "", array.dtype, layout)


def pack_part(state: Mapping[str, Array], path: str, dtype: DTypeLike, layout: dtensor.Layout) -> tf.Tensor:
    """Splits a whole array over the mesh, whatever dims the layout shards; of several processes each reads its parts.

    Args:
      state: of which the array is one, see `runner.engine.base.part_of`.
      path: of it; every sharded dim must be divisible by its axis.
      dtype: of the result.
      layout: DTensor layout of the array's rank.

    Returns:
      A DTensor of that layout.

    Raises:
      ValueError: a dim that its axis does not divide.
    """
    mesh = layout.mesh
    specs = layout.sharding_specs
    shape = shape_of(state, path)
    for dim, spec in zip(shape, specs, strict=True):
        if spec != dtensor.UNSHARDED and dim % mesh.dim_size(spec):
            raise ValueError(f"axis {spec!r} of size {mesh.dim_size(spec)} does not divide a dim of {dim}")
    sizes = [
        dim if spec == dtensor.UNSHARDED else dim // mesh.dim_size(spec)
        for dim, spec in zip(shape, specs, strict=True)
    ]
    pieces = [part_of(state, path, _slices(sizes, layout, place)) for place in mesh.local_device_locations()]
    return dtensor.pack([np.array(piece, dtype, order="C") for piece in pieces], layout)  # copies, of rank 0 too


def unpack(tensor: tf.Tensor | tf.Variable) -> Array:
    """Returns the whole host array of a DTensor or DVariable, put together from its shards.

    What lies in several processes is gathered; all of them must ask for it.
    """
    value = read_stored(tensor) if isinstance(tensor, tf.Variable) else tensor
    layout = dtensor.fetch_layout(value)
    if any(spec != dtensor.UNSHARDED for spec in layout.sharding_specs) and not processes.is_here(layout.mesh):
        layout = dtensor.Layout.replicated(layout.mesh, layout.rank)
        value = dtensor.relayout(value, layout)
    processes.wait_for_devices(layout.mesh)
    whole: Array = np.empty(tuple(value.shape), value.dtype.as_numpy_dtype)
    for place, shard in zip(layout.mesh.local_device_locations(), dtensor.unpack(value), strict=True):
        whole[_slices(shard.shape, layout, place)] = shard.numpy()
    return whole


def shards(value: tf.Tensor) -> list[Shard]:
    """Returns the different pieces of a DTensor, copied from the first device that holds each, if it is here."""
    layout = dtensor.fetch_layout(value)
    whole = tuple(value.shape)
    processes.wait_for_devices(layout.mesh)
    found = []
    for place, shard in zip(layout.mesh.local_device_locations(), dtensor.unpack(value), strict=True):
        if not any(at for axis, at in place.items() if axis not in layout.sharding_specs):
            found.append(Shard(_start(shard.shape, layout, place), np.array(shard.numpy()), whole))
    return found


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

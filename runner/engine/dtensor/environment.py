"""DTensor helpers: the process's environment, and arrays in and out of a mesh."""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from runner.config.schema import RunConfig
from runner.engine.base import Array, Part
from runner.engine.dtensor.variable_reads import read_held

_COMBINER = "DTENSOR_ENABLE_COMBINE_ALL_REDUCES_OPTIMIZATION"


def prepare_environment(config: RunConfig) -> None:
    """Sets the process's environment; must run before TensorFlow's first import.

    Args:
      config: a checked config; its `engine.combine_all_reduces` overrides what the environment says.
    """
    os.environ[_COMBINER] = "1" if config.engine.combine_all_reduces else "0"  # DTensor takes only "0" as off
    os.environ["TF_USE_LEGACY_KERAS"] = "1"
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # TensorFlow's C++ log; its exceptions still arrive


def skip_graph_optimizer() -> None:
    """Leaves programs as DTensor made them: optimizing is most of the compilation of one that is only read."""
    import tensorflow as tf

    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})


def pack(array: Array, layout: Any) -> Any:
    """Splits a host array over the mesh, whatever dims the layout shards, multi-client meshes included.

    Args:
      array: whole array; every sharded dim must be divisible by its axis.
      layout: DTensor layout of the array's rank.

    Returns:
      A DTensor of that layout.

    Raises:
      ValueError: a dim that its axis does not divide.
    """
    from tensorflow.experimental import dtensor

    mesh, specs = layout.mesh, layout.sharding_specs
    for dim, spec in zip(array.shape, specs, strict=True):
        if spec != dtensor.UNSHARDED and dim % mesh.dim_size(spec):
            raise ValueError(f"axis {spec!r} of size {mesh.dim_size(spec)} does not divide a dim of {dim}")
    shards = []
    for place in mesh.local_device_locations():
        index = []
        for dim, spec in zip(array.shape, specs, strict=True):
            size = dim if spec == dtensor.UNSHARDED else dim // mesh.dim_size(spec)
            start = 0 if spec == dtensor.UNSHARDED else place[spec] * size
            index.append(slice(start, start + size))
        shards.append(np.array(array[tuple(index)], order="C"))  # a copy, of rank 0 too
    return dtensor.pack(shards, layout)


def unpack(tensor: Any) -> Array:
    """Returns the whole host array of a DTensor or DVariable, put together from its shards (single-client meshes)."""
    from tensorflow.experimental import dtensor

    value = read_held(tensor) if hasattr(tensor, "read_value") else tensor
    layout = dtensor.fetch_layout(value)
    shards = dtensor.unpack(value)
    whole = np.empty(tuple(value.shape), value.dtype.as_numpy_dtype)
    for place, shard in zip(layout.mesh.local_device_locations(), shards, strict=True):
        index = []
        for size, spec in zip(shard.shape, layout.sharding_specs, strict=True):
            start = 0 if spec == dtensor.UNSHARDED else place[spec] * size
            index.append(slice(start, start + size))
        whole[tuple(index)] = shard.numpy()
    return whole


def parts(value: Any) -> list[Part]:
    """Returns the different pieces of a DTensor, copied from the first device that holds each."""
    from tensorflow.experimental import dtensor

    layout, whole = dtensor.fetch_layout(value), tuple(value.shape)
    found: dict[tuple[int, ...], Part] = {}
    for place, shard in zip(layout.mesh.local_device_locations(), dtensor.unpack(value), strict=True):
        start = tuple(
            0 if spec == dtensor.UNSHARDED else place[spec] * size
            for size, spec in zip(shard.shape, layout.sharding_specs, strict=True)
        )
        if start not in found:
            found[start] = Part(start, np.array(shard.numpy()), whole)
    return list(found.values())


def zeros(like: Any) -> Any:
    """Returns a DVariable of zeros with a variable's shape, dtype and layout."""
    import tensorflow as tf
    from tensorflow.experimental import dtensor

    value = dtensor.call_with_layout(tf.zeros, like.layout, shape=like.shape, dtype=like.dtype)
    return dtensor.DVariable(value, trainable=False)

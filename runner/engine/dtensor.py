"""DTensor helpers: the process's environment, arrays in and out of a mesh, and the order check of a step."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import numpy as np

from runner.engine.base import Array
from runner.engine.storage import read_held
from runner.errors import EngineError
from runner.schema import RunConfig

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
    """Leaves programs as DTensor made them: for one that is read and not run, optimizing is most of its compilation."""
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


def zeros(like: Any) -> Any:
    """Returns a DVariable of zeros with a variable's shape, dtype and layout."""
    import tensorflow as tf
    from tensorflow.experimental import dtensor

    value = dtensor.call_with_layout(tf.zeros, like.layout, shape=like.shape, dtype=like.dtype)
    return dtensor.DVariable(value, trainable=False)


_WRITES = ("AssignVariableOp", "AssignAddVariableOp", "AssignSubVariableOp")


def check_order(graph: Any, names: Mapping[int, str]) -> None:
    """Checks that a traced step reads no variable after writing it, and writes none twice.

    DTensor's all-reduce combiner keeps the order of data but not that of variable accesses: a step that depends on
    the latter is computed wrongly, without an error. A step that passes has no such order to lose.

    Args:
      graph: the function graph that holds the step's operations, in the order of their making.
      names: id of a variable's handle -> its path, for the message.

    Raises:
      EngineError: names the variable and the option that makes the step safe.
    """
    written: set[int] = set()
    for operation in graph.get_operations():
        if operation.type not in ("ReadVariableOp", *_WRITES):
            continue
        resource = operation.inputs[0]
        if id(resource) in written:
            what = "reads" if operation.type == "ReadVariableOp" else "writes again"
            raise EngineError(
                f"engine.combine_all_reduces=true is refused: the training step {what} variable "
                f"{_variable_name(graph, resource, names)} after writing it, and DTensor's all-reduce combiner does "
                "not keep that order; set engine.combine_all_reduces=false"
            )
        if operation.type in _WRITES:
            written.add(id(resource))


def _variable_name(graph: Any, resource: Any, names: Mapping[int, str]) -> str:
    """Returns the path of the variable behind a resource tensor, through the captures of nested function graphs."""
    while hasattr(graph, "captures"):
        outer = [held for held, inner in graph.captures if inner.name == resource.name]
        if not outer:
            break
        if id(outer[0]) in names:
            return names[id(outer[0])]
        resource, graph = outer[0], graph.outer_graph
    return "(not the model's)"

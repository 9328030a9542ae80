"""Reads a step's communication out of the program that DTensor made of it.

DTensor lowers a traced step to one function, the same on every device, in which each collective is a node: its name
tells which operation needed it, its shape how much one device puts in, and a table indexed by device which devices
take part.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterator, Mapping

import numpy as np
import tensorflow as tf
from tensorflow.core.framework.node_def_pb2 import NodeDef

from runner.engine.base import Collective
from runner.engine.device_groups import device_groups
from runner.engine.dtensor.origins import PACKED_SCOPE, Member, Origins, phase
from runner.engine.dtensor.packing import Packing
from runner.engine.dtensor.private import function_names, function_nodes
from runner.errors import EngineError
from runner.layout import Placement

_KINDS = {
    "AllReduce": "all_reduce",
    "AllGather": "all_gather",
    "ReduceScatter": "reduce_scatter",
    "AllToAll": "all_to_all",
}
_OPS = {
    "CollectiveReduceV2": "all_reduce",
    "CollectiveReduceV3": "all_reduce",
    "CollectiveGatherV2": "all_gather",
    "CollectiveReduceScatterV2": "reduce_scatter",
    "CollectiveAllToAllV2": "all_to_all",
    "CollectiveAllToAllV3": "all_to_all",
    "CollectiveBcastSendV2": "broadcast",
    "CollectiveBcastRecvV2": "broadcast",
}
_MERGED = "CombinedReduceUpdateSlice"  # how DTensor's combiner names the nodes that put a merged all-reduce together


def collectives(
    loop: str,
    before: frozenset[str],
    axes: Mapping[str, int],
    placements: Mapping[str, Placement],
    names: Mapping[str, str],
    trainable: Collection[str],
    data_axes: Collection[str],
    packed: Packing | None = None,
) -> list[Collective]:
    """Counts the collectives of one training step.

    Args:
      loop: name that the step's while loop was given; its body is the step.
      before: names of the functions that were there before the loop was compiled.
      axes: mesh axis to size, in the mesh's order; devices are numbered row-major over it.
      placements: of every variable, by canonical path; collectives are put down to these and to their layers.
      names: canonical path to the variable's own name, which begins as the nodes of its layer do.
      trainable: paths of the variables that have gradients.
      data_axes: axes that split the inputs; gradients are summed over these, and activations over the others.
      packed: how the gradients lie in the vector that is summed, where they do.

    Returns:
      One entry a tensor that is communicated. A merged all-reduce is counted at its first tensor, the others have a
      count of 0; what DTensor pads it with has an entry of its own, of no origin, so that the bytes add up.

    Raises:
      EngineError: TensorFlow holds no such loop, or a collective that is not understood.
    """
    bodies = [name for name in function_names() - before if name.startswith(f"{loop}_") and name.endswith("_body")]
    if not bodies:
        raise EngineError(f"TensorFlow holds no body of the loop {loop}; was the step compiled?")
    origins = Origins(placements, names, trainable, axes, data_axes)
    found: list[Collective] = []
    for nodes, node in _collective_nodes(min(bodies, key=len), set()):
        axis = _axis(nodes, node, axes)
        if axis:  # a group of one device communicates nothing
            found += _read(nodes, node, axis, axes, origins, packed)
    return found


def _collective_nodes(function: str, seen: set[str]) -> Iterator[tuple[dict[str, NodeDef], NodeDef]]:
    """Yields (all nodes of its function by name, node) of a function's collectives and of those that it calls."""
    seen.add(function)
    nodes = function_nodes(function)
    for node in nodes.values():
        if node.op.startswith("Collective") and not node.op.startswith("CollectiveInit"):
            if node.op not in _OPS:
                raise EngineError(f"collective {node.name} is of an unknown kind, {node.op}")
            yield nodes, node
        called = [value.func.name for value in node.attr.values() if value.HasField("func")]
        for name in called:
            if name not in seen:
                yield from _collective_nodes(name, seen)


def _read(
    nodes: Mapping[str, NodeDef],
    node: NodeDef,
    axis: str,
    axes: Mapping[str, int],
    origins: Origins,
    packed: Packing | None,
) -> Iterator[Collective]:
    named = re.search(r"DTensor([A-Z][A-Za-z]+?)Op", node.name)
    kind = _KINDS.get(named.group(1) if named else "", _OPS[node.op])
    width = tf.dtypes.as_dtype(node.attr["T"].type).size
    whole = _shape(node, 0)
    # A reduce-scatter gives one device a part of what it put in.
    share = math.prod(axes[name] for name in axis.split("+")) if node.op == "CollectiveReduceScatterV2" else 1
    members = _members(nodes, node) or [Member(node.name, whole)]
    if packed is not None and f"/{PACKED_SCOPE}/" in node.name:
        members = [Member(node.name, shape, path) for path, shape in zip(packed.paths, packed.shapes, strict=True)]
    for index, member in enumerate(members):
        when = phase(member.name)
        origin = member.origin or origins.of(member, when, axis)
        size = math.prod(member.shape) * width * share
        yield Collective(kind, axis, when, origin, int(index == 0), size)
    padding = math.prod(whole) - sum(math.prod(member.shape) for member in members)
    if padding:
        yield Collective(kind, axis, phase(node.name), "", 0, padding * width * share)


def _members(nodes: Mapping[str, NodeDef], node: NodeDef) -> list[Member]:
    """Returns what a merged all-reduce carries, in the order that its buffer is filled."""
    found: list[Member] = []
    buffer = _producer(nodes, node.input[0])
    while buffer is not None and _MERGED in buffer.name:
        tensor = buffer.input[4]
        value = _producer(nodes, tensor)
        if value is not None and "CombinedReduceFlatten" in value.name:
            tensor = value.input[0]
            value = _producer(nodes, tensor)
        assert value is not None
        found.append(Member(buffer.name, _shape(value, _output(tensor))))
        buffer = _producer(nodes, buffer.input[0])
    return found[::-1]


def _producer(nodes: Mapping[str, NodeDef], tensor: str) -> NodeDef | None:
    """Returns the node that makes a tensor of a function, None where it is one of the function's inputs."""
    return nodes.get(tensor.removeprefix("^").split(":")[0])


def _output(tensor: str) -> int:
    """Returns which output of its node a tensor is; nodes with outputs of several names are none that are reduced."""
    return int(tensor.rpartition(":")[2]) if ":" in tensor else 0


def _shape(node: NodeDef, output: int) -> tuple[int, ...]:
    shapes = node.attr["_output_shapes"].list.shape
    return tuple(int(dim.size) for dim in shapes[output].dim)


def _axis(nodes: Mapping[str, NodeDef], node: NodeDef, axes: Mapping[str, int]) -> str:
    """Returns the axes over whose devices a collective runs, joined by `+`; empty where each device is alone."""
    key = _producer(nodes, node.input[2])
    while key is not None and key.op == "Reshape":
        key = _producer(nodes, key.input[0])
    table = _producer(nodes, key.input[0]) if key is not None and key.op == "Slice" else None
    if table is None or table.op != "Const":
        raise EngineError(f"collective {node.name}: its table of groups was not found")
    groups = tf.make_ndarray(table.attr["value"].tensor).reshape(-1)  # each device's
    found = {frozenset(np.flatnonzero(groups == group).tolist()) for group in groups}
    for names, expected in device_groups(axes).items():
        if found == expected:
            return "+".join(names)
    raise EngineError(f"collective {node.name}: its groups {groups.tolist()} are those of no axes of the mesh")

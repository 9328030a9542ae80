"""Reads a step's communication out of the program that DTensor made of it.

DTensor lowers a traced step to one function, the same on every device, in which each collective is a node. The node's
name tells which operation needed it, its shape how much one device puts in, and a table indexed by device which
devices take part.
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
from runner.engine.origins import group_size
from runner.errors import EngineError
from runner.layout import Placement

# DTensor's name of a collective, which is in its node's name -> ours. It tells what the step asked for; the node's
# type tells what it is computed by, and is used only if the name has none.
_KINDS = {
    "AllReduce": "all_reduce",
    "AllGather": "all_gather",
    "ReduceScatter": "reduce_scatter",
    "AllToAll": "all_to_all",
}
# Node type -> kind of collective.
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
# Part of the names of the nodes with which DTensor's combiner fills the buffer of a merged all-reduce, and of those
# that flatten a tensor for it.
_MERGED = "CombinedReduceUpdateSlice"
_FLATTENED = "CombinedReduceFlatten"
_Nodes = Mapping[str, NodeDef]  # all nodes of a function, by name


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
      before: names of the functions that existed before the loop was compiled.
      axes: mesh axis to size, in the mesh's order; devices are numbered row-major over it.
      placements: of every variable, by canonical path; collectives are assigned to these and to their layers.
      names: canonical path to the variable's own name, which begins as the nodes of its layer do.
      trainable: paths of the variables that have gradients.
      data_axes: axes that shard the inputs; gradients are summed over these, and activations over the others.
      packed: positions of the gradients in the vector that is summed, if they are packed.

    Returns:
      One entry per tensor that is communicated. A merged all-reduce is counted at its first tensor, the others have a
      count of 0; the combiner's padding has an entry without an origin, so that the bytes add up.

    Raises:
      EngineError: TensorFlow has no such loop, or a collective is not understood.
    """
    new_functions = function_names() - before
    bodies = []
    for name in new_functions:
        if name.startswith(f"{loop}_") and name.endswith("_body"):
            bodies.append(name)
    if not bodies:
        raise EngineError(f"TensorFlow holds no body of the loop {loop}; was the step compiled?")
    origins = Origins(placements, names, trainable, axes, data_axes)
    # DTensor appends numbers to the names of its copies; the shortest name is the body that runs.
    body = min(bodies, key=len)
    entries: list[Collective] = []
    for nodes, node in _collective_nodes(body, set()):
        axis = _axis(nodes, node, axes)
        if axis:  # a group of one device communicates nothing
            entries += _read(nodes, node, axis, axes, origins, packed)
    return entries


def _collective_nodes(function: str, seen: set[str]) -> Iterator[tuple[_Nodes, NodeDef]]:
    """Yields the collectives of a function and of those that it calls.

    Each comes as (all nodes of its function, node).

    Args:
      function: its name.
      seen: names of the functions that were read before; is added to.
    """
    seen.add(function)
    nodes = function_nodes(function)
    for node in nodes.values():
        if node.op.startswith("Collective") and not node.op.startswith("CollectiveInit"):
            if node.op not in _OPS:
                raise EngineError(f"collective {node.name} is of an unknown kind, {node.op}")
            yield nodes, node
        for value in node.attr.values():
            if value.HasField("func") and value.func.name not in seen:
                yield from _collective_nodes(value.func.name, seen)


def _read(
    nodes: _Nodes,
    node: NodeDef,
    axis: str,
    axes: Mapping[str, int],
    origins: Origins,
    packed: Packing | None,
) -> Iterator[Collective]:
    """Yields the tensors that a collective carries."""
    dtensor_name = re.search(r"DTensor([A-Z][A-Za-z]+?)Op", node.name)
    kind = _OPS[node.op]
    if dtensor_name is not None:
        kind = _KINDS.get(dtensor_name.group(1), kind)
    bytes_per_element = tf.dtypes.as_dtype(node.attr["T"].type).size
    shape = _shape(node, 0)
    if node.op == "CollectiveReduceScatterV2":
        # The node's shape is that of its result, one device's part of what it put in.
        bytes_per_element *= group_size(axis, axes)
    members = _members(nodes, node) or [Member(node.name, shape)]
    if packed is not None and f"/{PACKED_SCOPE}/" in node.name:
        members = []
        for path, member_shape in zip(packed.paths, packed.shapes, strict=True):
            members.append(Member(node.name, member_shape, path))
    for index, member in enumerate(members):
        member_phase = phase(member.name)
        origin = member.origin or origins.of(member, member_phase, axis)
        size = math.prod(member.shape) * bytes_per_element
        yield Collective(kind, axis, member_phase, origin, int(index == 0), size)
    padding = math.prod(shape) - sum(math.prod(member.shape) for member in members)
    if padding:
        yield Collective(kind, axis, phase(node.name), "", 0, padding * bytes_per_element)


def _members(nodes: _Nodes, node: NodeDef) -> list[Member]:
    """Returns the tensors of a merged all-reduce, in the order of its buffer."""
    members: list[Member] = []
    # The combiner writes one tensor after another into a buffer, each by a node whose input is the node before it.
    buffer = _producer(nodes, node.input[0])
    while buffer is not None and _MERGED in buffer.name:
        tensor = buffer.input[4]  # the written value; the inputs before it are the buffer and three of its slice
        value = _producer(nodes, tensor)
        if value is not None and _FLATTENED in value.name:
            tensor = value.input[0]
            value = _producer(nodes, tensor)
        assert value is not None
        members.append(Member(buffer.name, _shape(value, _output(tensor))))
        buffer = _producer(nodes, buffer.input[0])
    return members[::-1]


def _producer(nodes: _Nodes, tensor: str) -> NodeDef | None:
    """Returns the node that computes a tensor of a function.

    It is None if the tensor is one of the function's inputs.
    """
    return nodes.get(tensor.removeprefix("^").split(":")[0])


def _output(tensor: str) -> int:
    """Returns the index of a tensor among its node's outputs.

    Nodes with several named outputs are never reduced.
    """
    _, colon, index = tensor.rpartition(":")
    if not colon:
        return 0
    return int(index)


def _shape(node: NodeDef, output: int) -> tuple[int, ...]:
    shapes = node.attr["_output_shapes"].list.shape
    return tuple(int(dim.size) for dim in shapes[output].dim)


def _axis(nodes: _Nodes, node: NodeDef, axes: Mapping[str, int]) -> str:
    """Returns the axes over whose devices a collective runs, joined by `+`.

    The result is empty if each device is alone.
    """
    # The key of a device's group is a slice of a constant table, reshaped to a scalar.
    key = _producer(nodes, node.input[2])
    while key is not None and key.op == "Reshape":
        key = _producer(nodes, key.input[0])
    table = None
    if key is not None and key.op == "Slice":
        table = _producer(nodes, key.input[0])
    if table is None or table.op != "Const":
        raise EngineError(f"collective {node.name}: its table of groups was not found")
    group_of_device = tf.make_ndarray(table.attr["value"].tensor).reshape(-1)
    groups = {frozenset(np.flatnonzero(group_of_device == group).tolist()) for group in group_of_device}
    for names, expected in device_groups(axes).items():
        if groups == expected:
            return "+".join(names)
    raise EngineError(
        f"collective {node.name}: its groups {group_of_device.tolist()} are those of no axes of the mesh"
    )

"""Reads a step's communication out of the program that DTensor made of it.

DTensor lowers a traced step to one function, the same on every device, in which each collective is a node: its name
tells which operation needed it, its shape how much one device puts in, and a table indexed by device which devices
take part. `tensorflow.python.eager.context` is private; it is used in this module alone.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from runner.config.errors import EngineError
from runner.engine.base import Collective
from runner.engine.dtensor import packing
from runner.engine.dtensor.variable_reads import SCOPE as GATHER_SCOPE
from runner.layout import Placement

UPDATE_SCOPE = "update"  # name scope of the optimizer's operations
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


@dataclass(frozen=True)
class _Member:
    """One tensor that a collective carries: several where all-reduces were merged, by DTensor or by the packing.

    The origin is known where the engine packed it; else the name tells it.
    """

    name: str
    shape: tuple[int, ...]
    origin: str = ""


def function_names() -> frozenset[str]:
    """Returns the names of all functions that TensorFlow holds now."""
    from tensorflow.python.eager import context

    return frozenset(str(name) for name in context.context().list_function_names())


def collectives(
    loop: str,
    before: frozenset[str],
    axes: Mapping[str, int],
    placements: Mapping[str, Placement],
    names: Mapping[str, str],
    trained: Collection[str],
    data_axes: Collection[str],
    packed: packing.Packing | None = None,
) -> list[Collective]:
    """Counts the collectives of one training step.

    Args:
      loop: name that the step's while loop was given; its body is the step.
      before: names of the functions that were there before the loop was compiled.
      axes: mesh axis to size, in the mesh's order; devices are numbered row-major over it.
      placements: of every variable, by canonical path; collectives are put down to these and to their layers.
      names: canonical path to the variable's own name, which begins as the nodes of its layer do.
      trained: paths of the variables that have gradients.
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
    origins = _Origins(placements, names, trained, axes, data_axes)
    found: list[Collective] = []
    for nodes, node in _collective_nodes(min(bodies, key=len), set()):
        axis = _axis(nodes, node, axes)
        if axis:  # a group of one device communicates nothing
            found += _read(nodes, node, axis, axes, origins, packed)
    return found


def _collective_nodes(function: str, seen: set[str]) -> Iterator[tuple[dict[str, Any], Any]]:
    """Yields (all nodes of its function by name, node) of a function's collectives and of those that it calls."""
    from tensorflow.python.eager import context

    seen.add(function)
    nodes = {node.name: node for node in context.context().get_function_def(function).node_def}
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
    nodes: Mapping[str, Any],
    node: Any,
    axis: str,
    axes: Mapping[str, int],
    origins: _Origins,
    packed: packing.Packing | None,
) -> Iterator[Collective]:
    import tensorflow as tf

    named = re.search(r"DTensor([A-Z][A-Za-z]+?)Op", node.name)
    kind = _KINDS.get(named.group(1) if named else "", _OPS[node.op])
    width = tf.dtypes.as_dtype(node.attr["T"].type).size
    whole = _shape(node, 0)
    # A reduce-scatter gives one device a part of what it put in.
    share = math.prod(axes[name] for name in axis.split("+")) if node.op == "CollectiveReduceScatterV2" else 1
    members = _members(nodes, node) or [_Member(node.name, whole)]
    if packed is not None and f"/{packing.SCOPE}/" in node.name:
        members = [_Member(node.name, shape, path) for path, shape in zip(packed.paths, packed.shapes, strict=True)]
    for index, member in enumerate(members):
        phase = _phase(member.name)
        origin = member.origin or origins.of(member, phase, axis)
        size = math.prod(member.shape) * width * share
        yield Collective(kind, axis, phase, origin, int(index == 0), size, counted=True)
    padding = math.prod(whole) - sum(math.prod(member.shape) for member in members)
    if padding:
        yield Collective(kind, axis, _phase(node.name), "", 0, padding * width * share, counted=True)


def _members(nodes: Mapping[str, Any], node: Any) -> list[_Member]:
    """Returns what a merged all-reduce carries, in the order that its buffer is filled."""
    found: list[_Member] = []
    buffer = _producer(nodes, node.input[0])
    while buffer is not None and _MERGED in buffer.name:
        value = _producer(nodes, buffer.input[4])
        if value is not None and "CombinedReduceFlatten" in value.name:
            value, output = _producer(nodes, value.input[0]), _output(value.input[0])
        else:
            output = _output(buffer.input[4])
        assert value is not None
        found.append(_Member(buffer.name, _shape(value, output)))
        buffer = _producer(nodes, buffer.input[0])
    return found[::-1]


def _producer(nodes: Mapping[str, Any], tensor: str) -> Any:
    """Returns the node that makes a tensor of a function, None where it is one of the function's inputs."""
    return nodes.get(tensor.removeprefix("^").split(":")[0])


def _output(tensor: str) -> int:
    """Returns which output of its node a tensor is; nodes with outputs of several names are none that are reduced."""
    return int(tensor.rpartition(":")[2]) if ":" in tensor else 0


def _shape(node: Any, output: int) -> tuple[int, ...]:
    shapes = node.attr["_output_shapes"].list.shape
    return tuple(int(dim.size) for dim in shapes[output].dim)


def _axis(nodes: Mapping[str, Any], node: Any, axes: Mapping[str, int]) -> str:
    """Returns the axes over whose devices a collective runs, joined by `+`; empty where each device is alone."""
    key = _producer(nodes, node.input[2])
    while key is not None and key.op == "Reshape":
        key = _producer(nodes, key.input[0])
    table = _producer(nodes, key.input[0]) if key is not None and key.op == "Slice" else None
    if table is None or table.op != "Const":
        raise EngineError(f"collective {node.name}: its table of groups was not found")
    import tensorflow as tf

    groups = tf.make_ndarray(table.attr["value"].tensor).reshape(-1)
    for names, expected in device_groups(axes).items():
        if _partition(groups.tolist()) == _partition(expected):
            return "+".join(names)
    raise EngineError(f"collective {node.name}: its groups {groups.tolist()} are those of no axes of the mesh")


def device_groups(axes: Mapping[str, int]) -> dict[tuple[str, ...], list[int]]:
    """Returns, for every choice of axes, the group of each device; the devices of a group differ in those axes only.

    Args:
      axes: mesh axis to size; devices are numbered row-major.
    """
    real = [name for name, size in axes.items() if size > 1]
    sizes = tuple(axes[name] for name in real)
    places = np.arange(math.prod(sizes)).reshape(sizes)
    found: dict[tuple[str, ...], list[int]] = {}
    for count in range(len(real) + 1):
        for chosen in itertools.combinations(range(len(real)), count):
            first = places[tuple(slice(0, 1) if i in chosen else slice(None) for i in range(len(real)))]
            found[tuple(real[i] for i in chosen)] = np.broadcast_to(first, sizes).reshape(-1).tolist()
    return found


def _partition(keys: Sequence[int]) -> list[int]:
    """Returns group numbers in the order of their first device, so that equal groupings are equal lists."""
    numbers: dict[int, int] = {}
    return [numbers.setdefault(key, len(numbers)) for key in keys]


def _phase(name: str) -> str:
    if f"/{UPDATE_SCOPE}/" in name:
        return "update"
    # A tape adds up the gradients of what several layers use under no layer's name; DTensor appends numbers.
    summed = re.match(r"[^/]+/AddN(_\d+)*(/DTensor|$)", name) is not None
    packed = f"/{packing.SCOPE}/" in name
    return "backward" if summed or packed or "gradient_tape/" in name else "forward"


class _Origins:
    """Finds the variable or layer that a collective serves, by its node's name and its shape."""

    def __init__(
        self,
        placements: Mapping[str, Placement],
        names: Mapping[str, str],
        trained: Collection[str],
        axes: Mapping[str, int],
        data_axes: Collection[str],
    ) -> None:
        self._placements, self._trained, self._axes = placements, set(trained), axes
        self._data_axes = set(data_axes)
        self._layers: dict[str, list[str]] = {}
        for path in placements:
            # A node tells the layers' names: `block_0.norm` for `block_0/norm`, `m/dense_1` for an attribute's path.
            scope = names.get(path, "").rpartition("/")[0] or path.rpartition("/")[0]
            self._layers.setdefault(scope.replace(".", "/"), []).append(path)
        self._claimed: set[tuple[str, str, str]] = set()

    def of(self, member: _Member, phase: str, axis: str) -> str:
        """Returns a canonical path, or nothing where the name tells none."""
        parts = "/" + member.name.replace(".", "/") + "/"
        if phase == "update":
            written = [path for path in self._placements if f"/{UPDATE_SCOPE}/{path.replace('.', '/')}/" in parts]
            return written[0] if written else ""
        inside = [layer for layer in self._layers if f"/{layer}/" in parts]
        if not inside:
            return ""
        layer = max(inside, key=len)
        if phase == "forward":  # it reduces outputs, and communicates variables where it reads them
            of_variable = "ReadVariableOp" in member.name or f"{GATHER_SCOPE}/" in member.name
        else:
            of_variable = bool(self._data_axes & set(axis.split("+")))
        return (self._variable(layer, member, phase, axis) if of_variable else None) or self._name(layer)

    def _name(self, layer: str) -> str:
        """Returns a layer's canonical path."""
        return self._layers[layer][0].rpartition("/")[0]

    def _variable(self, layer: str, member: _Member, phase: str, axis: str) -> str | None:
        used = axis.split("+")
        paths = [path for path in self._layers[layer] if phase != "backward" or path in self._trained]
        exact = [path for path in paths if _no_ones(member.shape) in self._shapes(path, used)]
        fits = exact or [path for path in paths if self._is_part(member.shape, path)]
        # Layer normalisation's two vectors have one shape: the operation tells them apart, else the order.
        shifts = bool(re.search(r"bias|/add|/sub", member.name, re.IGNORECASE))
        fits.sort(key=lambda path: path.endswith(("bias", "beta")) != shifts)
        for path in fits:
            if (phase, axis, path) not in self._claimed:
                self._claimed.add((phase, axis, path))
                return path
        return None

    def _is_part(self, shape: Sequence[int], path: str) -> bool:
        """Returns whether a shape is the variable's, cut by axes that its spec does not name, as a gradient may be."""
        sizes = set(self._axes.values()) | {1, math.prod(self._axes.values())}
        whole, part = _no_ones(self._placements[path].shape), _no_ones(shape)
        return len(whole) == len(part) and all(
            a % b == 0 and a // b in sizes for a, b in zip(whole, part, strict=True)
        )

    def _shapes(self, path: str, used: Sequence[str]) -> list[tuple[int, ...]]:
        """Returns a device's shapes of a variable: whole, put together over some axes, and as it is stored."""
        placement = self._placements[path]
        gathered = replace(placement, spec=tuple(None if name in used else name for name in placement.spec))
        shapes = [placement.shape, *(each.shard_shape(self._axes) for each in (gathered, placement))]
        return [_no_ones(shape) for shape in shapes]


def _no_ones(shape: Sequence[int]) -> tuple[int, ...]:
    """Returns a shape without its dims of 1: the sum that is a bias's gradient keeps the dims that it adds up."""
    return tuple(size for size in shape if size != 1)

"""Reads a step's communication out of the text of the program that XLA made of it.

Each collective is an instruction whose metadata names the JAX operation that it serves, with the Keras layers as
scopes and `transpose(...)` around what the gradient added; its replica groups tell the devices. XLA merges
collectives: one instruction then carries several tensors.
"""

from __future__ import annotations

import itertools
import math
import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from runner.engine.base import Collective
from runner.engine.device_groups import device_groups
from runner.engine.jax import loops
from runner.engine.jax.widened import promoted, widened
from runner.errors import EngineError
from runner.layout import Placement

_KINDS = {
    "all-reduce": "all_reduce",
    "all-gather": "all_gather",
    "reduce-scatter": "reduce_scatter",
    "all-to-all": "all_to_all",
    "ragged-all-to-all": "all_to_all",
    "collective-permute": "permute",
    "collective-broadcast": "broadcast",
}
_INSTRUCTION = re.compile(
    rf"^\s*(?:ROOT )?%?(?P<name>[\w.-]+) = (?P<type>.*?) (?P<kind>{'|'.join(_KINDS)})(?P<start>-start)?\("
    r"(?P<operands>[^)]*)\)(?P<rest>.*)$"
)
_BFLOAT16 = 2  # bytes of an element
_DEFINITION = re.compile(r"^\s*(?:ROOT )?%?([\w.-]+) = .*op_name=\"([^\"]*)\"")
# Of one layer: a shape of a part, its dims sorted, or a number of elements -> paths of variables.
_ByShape = dict[tuple[int, ...] | int, list[str]]
_SHAPE = re.compile(r"\b(pred|[a-z]+\d+\w*)\[([\d,]*)\]")


@dataclass(frozen=True)
class _Tensor:
    """One tensor that a collective carries: what a device gets of it, and the operation that it serves."""

    shape: tuple[int, ...]
    width: int
    operation: str


def collectives(
    text: str,
    axes: Mapping[str, int],
    placements: Mapping[str, Placement],
    layers: Collection[str],
    trainable: Collection[str],
    data_axes: Collection[str],
    *,
    looped: bool,
) -> list[Collective]:
    """Counts the collectives of one training step.

    Args:
      text: the compiled program, as XLA prints it.
      axes: mesh axis to size, in the mesh's order; devices are numbered row-major over it.
      placements: of every variable, by canonical path; collectives are put down to these.
      layers: canonical paths of the layers; collectives are put down to these too.
      trainable: paths of the variables that have gradients.
      data_axes: axes that split the inputs; gradients are summed over these, and activations over the others.
      looped: the step is the body of a loop, so that the entry computation runs once a call and is left out.

    Returns:
      One entry a tensor that is communicated. A merged collective is counted at its first tensor, the others have a
      count of 0; one in the body of a loop of known length, as a scan's, counts once a turn. What a program for CPUs
      widens to communicate it counts as the bfloat16 that it is.

    Raises:
      EngineError: replica groups in a form that is not understood.
    """
    defined = [matched for line in text.splitlines() if (matched := _DEFINITION.match(line))]
    operations = {matched[1]: matched[2] for matched in defined}
    narrow = widened(text)
    origins = _Origins(placements, layers, trainable, axes, data_axes)
    found: list[Collective] = []
    for line, times in _lines(text, entry=not looped):
        instruction = _INSTRUCTION.match(line)
        if instruction is None:
            continue
        axis = _axis(instruction["rest"], axes)
        if axis:  # a group of one device communicates nothing
            once = _read(instruction, axis, axes, operations, origins, narrow)
            found += [replace(each, count=times * each.count, bytes=times * each.bytes) for each in once]
    return found


def _lines(text: str, *, entry: bool) -> Iterator[tuple[str, int]]:
    """Yields the program's lines, with or without those of its entry computation, and how often each is run."""
    inside_entry = False
    for line, times in loops.lines(text):
        if line.startswith("ENTRY"):
            inside_entry = True
        elif line.startswith("}"):
            inside_entry = False
        if entry or not inside_entry:
            yield line, times


def _read(
    matched: re.Match[str],
    axis: str,
    axes: Mapping[str, int],
    operations: Mapping[str, str],
    origins: _Origins,
    narrow: Collection[str],
) -> Iterator[Collective]:
    kind = _KINDS[matched["kind"]]
    # A reduce-scatter gives one device a part of what it put in.
    share = math.prod(axes[name] for name in axis.split("+")) if kind == "reduce_scatter" else 1
    for index, tensor in enumerate(_tensors(matched, operations, narrow)):
        phase = _phase(tensor.operation)
        origin = origins.of(tensor, kind, phase, axis)
        size = math.prod(tensor.shape) * tensor.width * share
        yield Collective(kind, axis, phase, origin, int(index == 0), size)


def _tensors(matched: re.Match[str], operations: Mapping[str, str], narrow: Collection[str]) -> list[_Tensor]:
    shapes = _SHAPE.findall(re.sub(r"\{[^{}]*\}|/\*.*?\*/", "", matched["type"]))
    operands = [part.split("%")[-1].strip() for part in matched["operands"].split(",") if part.strip()]
    operands = [re.sub(r"/\*.*?\*/", "", name).strip() for name in operands]
    if matched["start"] and matched["kind"] != "all-reduce":  # a started collective lists its inputs, then its outputs
        shapes = shapes[len(operands) : 2 * len(operands)]
    own = re.search(r"op_name=\"([^\"]*)\"", matched["rest"])
    named = _merged(own.group(1)) if own else [""]
    found = []
    for index, (kind, dims) in enumerate(shapes):
        if len(named) == len(shapes):
            operation = named[index]
        else:  # equal names of a merge are given once; what made the operand then tells
            operand = operands[index] if index < len(operands) else ""
            operation = operations.get(operand, named[0])
        shape = tuple(int(size) for size in dims.split(",") if size)
        halved = promoted(matched["rest"]) or (index < len(operands) and operands[index] in narrow)
        found.append(_Tensor(shape, _BFLOAT16 if halved and kind == "f32" else _width(kind), operation))
    return found


def _merged(name: str) -> list[str]:
    """Returns the names that XLA joined in one: `a/(b:c)` is a/b and a/c."""
    found = re.fullmatch(r"(.*?)\(([^()]*(?:\([^()]*(?:\([^()]*\)[^()]*)*\)[^()]*)*:.*)\)", name)
    if found is None:
        return [name]
    return [found.group(1) + part for part in found.group(2).split(":")]


def _width(kind: str) -> int:
    """Returns the bytes of an element: `bf16` has 2, `pred` 1, those of fewer than 8 bits are stored in a byte."""
    bits = re.match(r"[a-z]+(\d+)", kind)
    return max(int(bits.group(1)) // 8, 1) if bits else 1


def _phase(operation: str) -> str:
    if "/update/" in operation:
        return "update"
    return "backward" if "transpose(" in operation else "forward"


def _axis(rest: str, axes: Mapping[str, int]) -> str:
    """Returns the axes over whose devices a collective runs, joined by `+`; empty where each device is alone."""
    pairs = re.search(r"source_target_pairs=\{(.*?)\}\}?(?:,|$)", rest)
    if pairs:
        return _moved_along([[int(n) for n in pair] for pair in re.findall(r"(\d+),(\d+)", pairs.group(0))], axes)
    groups = _groups(rest, math.prod(axes.values()))
    for names, expected in device_groups(axes).items():
        if {frozenset(group) for group in groups} == expected:
            return "+".join(names)
    # Some of an axis's devices, where XLA splits what the whole axis would not divide.
    return _moved_along([(group[0], other) for group in groups for other in group[1:]], axes)


def _groups(rest: str, devices: int) -> list[list[int]]:
    """Returns the devices of each group, of the three forms that XLA prints them in."""
    mesh = re.search(r"replica_groups=mesh\[([^\]]*)\](?:, device_ids=\(([^{]*)\))? *\{([^}]*)\}", rest)
    if mesh:
        return _mesh_groups(mesh.group(1), mesh.group(2) or "", mesh.group(3))
    tiled = re.search(r"replica_groups=\[([\d,]+)\]<=(\[[\d,]+\](?:T\([\d,]+\))?)", rest)
    if tiled:
        ids = _permuted(tiled.group(2)).reshape([int(n) for n in tiled.group(1).split(",")])
        return [[int(n) for n in row] for row in ids]
    listed = re.search(r"replica_groups=\{((?:\{[\d,]*\},?)*)\}", rest)
    if listed:
        rows = [[int(n) for n in row.split(",") if n] for row in re.findall(r"\{([\d,]*)\}", listed.group(1))]
        return rows or [list(range(devices))]
    raise EngineError(f"replica groups in an unknown form: {rest[:200]}")


def _permuted(text: str) -> npt.NDArray[np.int64]:
    """Reads the device numbers of `[2,4]T(1,0)`, which counts up to 8 in two dims and swaps these."""
    found = re.fullmatch(r"\[([\d,]+)\](?:T\(([\d,]+)\))?", text)
    if found is None:
        raise EngineError(f"device numbers in an unknown form: {text[:200]}")
    shape = [int(n) for n in found.group(1).split(",")]
    ids = np.arange(math.prod(shape)).reshape(shape)
    return (ids.transpose([int(n) for n in found.group(2).split(",")]) if found.group(2) else ids).reshape(-1)


def _mesh_groups(shape: str, order: str, chosen: str) -> list[list[int]]:
    """Reads `'axis_0'=2,'axis_1'=4` and `'axis_0'`; `'axis_1':(1)2` is the first factor of 2 of an axis."""
    sizes = {name: int(size) for name, size in re.findall(r"'([^']+)'=(\d+)", shape)}
    cuts: dict[str, list[int]] = {name: [1, size] for name, size in sizes.items()}
    wanted: list[tuple[str, int, int]] = []
    for name, before, size in re.findall(r"'([^']+)'(?::\((\d+)\)(\d+))?", chosen):
        start, stop = (int(before), int(before) * int(size)) if before else (1, sizes[name])
        cuts[name] = sorted({*cuts[name], start, stop})
        wanted.append((name, start, stop))
    factors = [(name, a, b) for name, points in cuts.items() for a, b in itertools.pairwise(points)]
    ids = _permuted(order or f"[{math.prod(sizes.values())}]").reshape([b // a for _, a, b in factors])
    inner = [i for i, (name, a, b) in enumerate(factors) if any(n == name and s <= a and b <= e for n, s, e in wanted)]
    outer = [i for i in range(len(factors)) if i not in inner]
    width = math.prod(ids.shape[i] for i in inner)
    return [[int(n) for n in row] for row in ids.transpose(outer + inner).reshape(-1, width)]


def _moved_along(pairs: Sequence[Sequence[int]], axes: Mapping[str, int]) -> str:
    """Returns the axes along which the devices of each pair lie apart."""
    sizes = tuple(axes.values())
    moved = set()
    for source, target in pairs:
        places = zip(axes, np.unravel_index(source, sizes), np.unravel_index(target, sizes), strict=True)
        moved |= {name for name, a, b in places if a != b}
    return "+".join(name for name in axes if name in moved)


class _Origins:
    """Finds the variable or layer that a collective serves, by its operation's scopes and its shape."""

    def __init__(
        self,
        placements: Mapping[str, Placement],
        layers: Collection[str],
        trainable: Collection[str],
        axes: Mapping[str, int],
        data_axes: Collection[str],
    ) -> None:
        self._trainable = set(trainable)
        self._placements = placements
        self._axes = axes
        self._data_axes = set(data_axes)
        self._layers: dict[str, list[str]] = {layer: [] for layer in layers}
        for path in placements:
            self._layers.setdefault(path.rpartition("/")[0], []).append(path)
        self._claimed: set[tuple[str, str, str, str]] = set()
        self._order = {layer: index for index, layer in enumerate(self._layers)}
        self._named: dict[str, str | None] = {}
        self._by_shape: dict[tuple[str, bool, str], _ByShape] = {}
        self._next: Counter[tuple[object, ...]] = Counter()

    def of(self, tensor: _Tensor, kind: str, phase: str, axis: str) -> str:
        """Returns a canonical path, or nothing where the name tells none."""
        layer = None if phase == "update" else self._layer(tensor.operation)
        if layer is None:
            return ""
        gathers = kind == "all_gather"
        sums = phase == "backward" and bool(self._data_axes & set(axis.split("+")))
        return (self._variable(layer, tensor, kind, phase, axis) if gathers or sums else None) or layer

    def _layer(self, operation: str) -> str | None:
        """Returns the layer with the longest path among an operation's scopes; None where there is none.

        Every part of the scopes is looked up: what a deep model has is more layers, not longer scopes.
        """
        if operation not in self._named:
            parts = re.sub(r"transpose\(|jvp\(|\)", "", operation).replace(".", "/").split("/")
            ends = range(1, len(parts) + 1)
            within = ("/".join(parts[start:end]) for end in ends for start in range(end))
            inside = {path for path in within if path in self._order}
            self._named[operation] = max(inside, key=lambda path: (len(path), -self._order[path]), default=None)
        return self._named[operation]

    def _variable(self, layer: str, tensor: _Tensor, kind: str, phase: str, axis: str) -> str | None:
        """Returns the layer's variable of the tensor's shape, transposed or not, else of as many elements."""
        gathers = kind == "all_gather"
        if (layer, gathers, axis) not in self._by_shape:
            self._by_shape[layer, gathers, axis] = self._sort(layer, axis, gathers=gathers)
        variables = self._by_shape[layer, gathers, axis]
        shape: tuple[int, ...] | int = tuple(sorted(tensor.shape))
        if shape not in variables:
            shape = math.prod(tensor.shape)
        fits = variables.get(shape, [])
        # What is claimed stays so: the next search begins where this one ends.
        place = (layer, kind, phase, axis, shape)
        while self._next[place] < len(fits):
            path = fits[self._next[place]]
            self._next[place] += 1
            if (kind, phase, axis, path) not in self._claimed:
                self._claimed.add((kind, phase, axis, path))
                return path
        return None

    def _sort(self, layer: str, axis: str, *, gathers: bool) -> _ByShape:
        """Returns a layer's variables that a collective may serve, by their shapes and by their elements."""
        found: _ByShape = {}
        for path in self._layers[layer]:
            if not gathers and path not in self._trainable:
                continue
            shapes = [tuple(shape) for shape in self._shapes(path, axis.split("+"))]
            keys: list[tuple[int, ...] | int] = [*shapes, *map(math.prod, shapes)]
            for key in dict.fromkeys(keys):
                found.setdefault(key, []).append(path)
        return found

    def _shapes(self, path: str, used: Sequence[str]) -> list[list[int]]:
        """Returns a device's shard, as it is and with the collective's axes put together, dims sorted."""
        placement = self._placements[path]
        whole = tuple(None if axis in used else axis for axis in placement.spec)
        shards = [placement, Placement(path, placement.shape, whole, None)]
        return [sorted(each.shard_shape(self._axes)) for each in shards]

"""Counts a step's communication in the text of the program that XLA compiled.

Each collective is an instruction. Its metadata names the JAX operation that it serves, and its replica groups the
devices. XLA merges collectives: one instruction then carries several tensors.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from runner.engine.base import Collective
from runner.engine.jax import hlo
from runner.layout import Placement
from runner.layout.axes import axis_size, without_axes

# XLA's collective -> kind of `Collective`.
_KINDS = {
    "all-reduce": "all_reduce",
    "all-gather": "all_gather",
    "reduce-scatter": "reduce_scatter",
    "all-to-all": "all_to_all",
    "ragged-all-to-all": "all_to_all",
    "collective-permute": "permute",
    "collective-broadcast": "broadcast",
}
_PROMOTED = re.compile(r"\bto_apply=%?[\w.-]*promoted")
# Element type and dims of each tensor in an instruction's type.
_SHAPE = re.compile(r"\b(pred|[a-z]+\d+\w*)\[([\d,]*)\]")
# Memory layouts such as `{1,0}`, and comments such as `/*index=5*/`.
_LAYOUT_OR_COMMENT = re.compile(r"\{[^{}]*\}|/\*.*?\*/")
_BF16_BYTES = 2
# Of the first of an asynchronous collective's two instructions.
_START = "-start"
# Sorted dims of a shape, or a number of elements.
_Size = tuple[int, ...] | int
# The compiler of TPUs prints a reduce-scatter as a computation of this name: an all-reduce and a slice of its result.
_REDUCE_SCATTER = "all-reduce-scatter"


@dataclass(frozen=True)
class _Tensor:
    """One tensor that a collective carries: XLA merges collectives, so an instruction may carry several.

    Attributes:
      shape: of what a device gets.
      width: bytes of an element.
      operation: name of the JAX operation that it serves.
    """

    shape: tuple[int, ...]
    width: int
    operation: str

    @property
    def phase(self) -> str:
        if "/update/" in self.operation:
            return "update"
        if "transpose(" in self.operation:
            return "backward"
        return "forward"


class _Origins:
    """Finds the variable or layer that a tensor's collective serves, by the operation's scopes and the shape.

    JAX names an operation by its scopes: the Keras layers, with `transpose(...)` around what the gradient added. A
    variable is the origin of one collective of each kind, phase and axis.
    """

    def __init__(
        self,
        placements: Mapping[str, Placement],
        layers: Iterable[str],
        trainable: Iterable[str],
        axes: Mapping[str, int],
        data_axes: Iterable[str],
    ) -> None:
        self._placements = placements
        self._trainable = set(trainable)
        self._axes = axes
        self._data_axes = set(data_axes)
        self._variables: dict[str, list[str]] = {layer: [] for layer in layers}
        for path in placements:
            layer, _, _ = path.rpartition("/")
            self._variables.setdefault(layer, []).append(path)
        # A deep model's program has many collectives with equal names: each name is looked up once.
        self._layers: dict[str, str] = {}
        # The variables of a layer that no collective of a kind, phase and axis serves yet, with their sizes.
        self._left: dict[tuple[str, ...], dict[str, list[_Size]]] = {}

    def of(self, kind: str, axis: str, tensor: _Tensor) -> str:
        """Returns a canonical path; it is empty for an update, and if the operation's name has none."""
        if tensor.phase == "update":
            return ""
        if tensor.operation not in self._layers:
            self._layers[tensor.operation] = self._layer(tensor.operation)
        layer = self._layers[tensor.operation]
        # Gradients are summed over axes that shard the inputs, activations over the others.
        sums_gradient = tensor.phase == "backward" and not self._data_axes.isdisjoint(axis.split("+"))
        if layer and (kind == "all_gather" or sums_gradient):
            return self._claimed(layer, kind, axis, tensor) or layer
        return layer

    def _layer(self, operation: str) -> str:
        """Returns the longest path of a layer among the runs of an operation's scopes."""
        scopes = re.sub(r"transpose\(|jvp\(|\)", "", operation).replace(".", "/").split("/")
        found = ""
        for start in range(len(scopes)):
            for stop in range(start + 1, len(scopes) + 1):
                path = "/".join(scopes[start:stop])
                if len(path) > len(found) and path in self._variables:
                    found = path
        return found

    def _claimed(self, layer: str, kind: str, axis: str, tensor: _Tensor) -> str | None:
        """Claims the layer's next variable of the tensor's dims, in any order, or of its number of elements."""
        key = (layer, kind, tensor.phase, axis)
        if key not in self._left:
            self._left[key] = self._sizes(layer, kind, axis)
        left = self._left[key]
        for size in (tuple(sorted(tensor.shape)), math.prod(tensor.shape)):
            for path, sizes in left.items():
                if size in sizes:
                    del left[path]
                    return path
        return None

    def _sizes(self, layer: str, kind: str, axis: str) -> dict[str, list[_Size]]:
        """Returns the sizes of a layer's variables on a device: of the stored shard, and gathered over an axis."""
        found: dict[str, list[_Size]] = {}
        for path in self._variables[layer]:
            if kind != "all_gather" and path not in self._trainable:
                continue
            placement = self._placements[path]
            gathered = replace(placement, spec=without_axes(placement.spec, axis.split("+")))
            found[path] = []
            for shape in (gathered.shard_shape(self._axes), placement.shard_shape(self._axes)):
                found[path] += [tuple(sorted(shape)), math.prod(shape)]
        return found


class _Program:
    """A program's instructions, with what they say of each other."""

    def __init__(self, program: Sequence[hlo.Instruction], axes: Mapping[str, int], origins: _Origins) -> None:
        self._axes = axes
        self._origins = origins
        self._counts = hlo.run_counts(program)
        self._widened = hlo.widened_bf16(program)
        # Names of instructions, and of the computations that they call -> JAX operation. Those inside may name none.
        self._operations: dict[str, str] = {}
        for instruction in program:
            if instruction.operation:
                self._operations[instruction.name] = instruction.operation
                for called in instruction.called():
                    self._operations.setdefault(called, instruction.operation)

    def read(self, instruction: hlo.Instruction) -> Iterator[Collective]:
        """Yields one entry per tensor of an instruction; a merge is one operation, counted at the first."""
        axis = _axis(instruction.attributes, self._axes)
        if not axis:
            # Each device is a group of its own: nothing is communicated.
            return
        kind = _KINDS[instruction.opcode.removesuffix(_START)]
        count = self._counts[instruction.computation]
        scale = count
        if kind == "reduce_scatter":
            # The instruction's type is a device's part of the result; `Collective.bytes` is what it puts in.
            scale *= axis_size(self._axes, axis)
        elif kind == "all_reduce" and instruction.computation.startswith(_REDUCE_SCATTER):
            # Its type is the whole already.
            kind = "reduce_scatter"
        for index, tensor in enumerate(self._tensors(instruction)):
            yield Collective(
                kind=kind,
                axis=axis,
                phase=tensor.phase,
                origin=self._origins.of(kind, axis, tensor),
                count=count if index == 0 else 0,
                bytes=math.prod(tensor.shape) * tensor.width * scale,
            )

    def _tensors(self, instruction: hlo.Instruction) -> list[_Tensor]:
        shapes = _SHAPE.findall(_LAYOUT_OR_COMMENT.sub("", instruction.type))
        operands = instruction.operands
        if instruction.opcode.endswith(_START) and not instruction.opcode.startswith("all-reduce"):
            # An asynchronous collective's type lists its inputs, then its outputs.
            shapes = shapes[len(operands) : 2 * len(operands)]
        names = _merged_names(instruction.operation)
        if not instruction.operation and instruction.computation.startswith(_REDUCE_SCATTER):
            names = [self._operations.get(instruction.computation, "")]
        # The other sign of a bfloat16 value that a program for CPUs widens, see `hlo.widened_bf16`.
        reduces_bf16 = _PROMOTED.search(instruction.attributes) is not None
        tensors = []
        for index, (element_type, dims) in enumerate(shapes):
            operand = ""
            if index < len(operands):
                operand = operands[index]
            # Equal names of a merge are given once; then the operand's own operation tells the tensors apart.
            operation = self._operations.get(operand, names[0])
            if len(names) == len(shapes):
                operation = names[index]
            width = _width(element_type)
            if element_type == "f32" and (reduces_bf16 or operand in self._widened):
                width = _BF16_BYTES
            tensors.append(_Tensor(tuple(hlo.integers(dims)), width, operation))
        return tensors


def collectives(
    text: str,
    axes: Mapping[str, int],
    placements: Mapping[str, Placement],
    layers: Iterable[str],
    trainable: Iterable[str],
    data_axes: Iterable[str],
    *,
    looped: bool,
) -> list[Collective]:
    """Counts the collectives of one training step in the compiled program, as XLA prints it.

    A merged collective is counted at its first tensor, the others have a count of 0. One in the body of a loop of
    known length, such as a scan's, counts once per turn. A bfloat16 tensor that a program for CPUs widens to
    communicate it has the bytes of bfloat16.

    Args:
      axes: mesh axis to size, in the mesh's order; devices are numbered row-major over it.
      placements: of every variable by canonical path. An origin is one of these paths or `layers`.
      looped: the step is the body of a loop, so that the entry computation runs once per call and is left out.

    Raises:
      EngineError: replica groups in an unknown form.
    """
    instructions = hlo.instructions(text)
    program = _Program(instructions, axes, _Origins(placements, layers, trainable, axes, data_axes))
    counted: list[Collective] = []
    for instruction in instructions:
        is_collective = instruction.opcode.removesuffix(_START) in _KINDS
        if is_collective and not (looped and instruction.is_entry):
            counted += program.read(instruction)
    return counted


def _merged_names(name: str) -> list[str]:
    """Returns the names that XLA joined in one: `a/(b:c)` is a/b and a/c."""
    # The parts have parentheses of their own, such as `transpose(jvp(d1))`, nested twice at most.
    merged = re.fullmatch(r"(.*?)\(([^()]*(?:\([^()]*(?:\([^()]*\)[^()]*)*\)[^()]*)*:.*)\)", name)
    if merged is None:
        return [name]
    return [merged[1] + part for part in merged[2].split(":")]


def _width(element_type: str) -> int:
    """Returns the bytes of an element: `bf16` has 2, `pred` 1. Those of fewer than 8 bits are stored in a byte."""
    bits = re.match(r"[a-z]+(\d+)", element_type)
    if bits is None:
        return 1
    return max(int(bits[1]) // 8, 1)


def _axis(attributes: str, axes: Mapping[str, int]) -> str:
    """Returns the axes over whose devices a collective runs, joined by `+`; empty: each device is alone."""
    pairs = hlo.source_target_pairs(attributes)
    if pairs is None:
        pairs = []
        # A group may be a part of an axis's devices: XLA splits by it a dim that the whole axis would not divide.
        for first, *others in hlo.replica_groups(attributes, math.prod(axes.values())):
            for other in others:
                pairs.append((first, other))
    numbers = np.asarray(pairs, np.int64).reshape(-1, 2).T
    places = np.asarray(np.unravel_index(numbers, tuple(axes.values())))
    differs = (places[:, 0] != places[:, 1]).any(axis=-1)
    return "+".join(itertools.compress(axes, differs))

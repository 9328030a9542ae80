"""Reads the text of a program that XLA compiled: how often instructions run, bfloat16 values, groups of devices."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
import numpy.typing as npt

from runner.errors import EngineError

# The first line of a computation: `%region_1 (arg: f32[2]) -> f32[2] {`, or `ENTRY %main ...`.
_HEADER = re.compile(r"^(ENTRY )?%?([\w.-]+) (?:\(.*)?\{\s*$")
_INSTRUCTION = re.compile(r"^\s*(ROOT )?%?([\w.-]+) = (.*?) ([a-z][\w-]*)\(([^)]*)\)(.*)$")
_COMMENT = re.compile(r"/\*.*?\*/")
_TRIP_COUNT = re.compile(r'"known_trip_count":\{"n":"(\d+)"\}')
_OPERATION = re.compile(r"op_name=\"([^\"]*)\"")
_CALLED = re.compile(r"\b(body|to_apply|calls|condition|true_computation|false_computation)=%?([\w.-]+)")
_BRANCHES = re.compile(r"\bbranch_computations=\{([^}]*)\}")
# Operations that leave an array's elements as they are.
_MOVES = ("copy", "bitcast", "reshape", "transpose")


@dataclass(frozen=True)
class Instruction:
    """An instruction of a program, and the computation that it is in.

    Attributes:
      is_root: its result is that of the computation.
      type: its tensors as XLA prints them, such as `(f32[2]{0}, s32[])`.
      operands: names of instructions; of a constant its value.
      attributes: the rest of the line.
    """

    computation: str
    is_entry: bool
    is_root: bool
    name: str
    type: str
    opcode: str
    operands: Sequence[str]
    attributes: str

    @property
    def operation(self) -> str:
        """Returns the JAX operation that it serves, or an empty string."""
        found = _OPERATION.search(self.attributes)
        return found[1] if found else ""

    def called(self) -> dict[str, str]:
        """Returns the computations that it calls, each with the attribute that names it."""
        computations = {name: attribute for attribute, name in _CALLED.findall(self.attributes)}
        branches = _BRANCHES.search(self.attributes)
        if branches:
            for name in branches[1].split(","):
                computations[name.strip().lstrip("%")] = "branch"
        return computations


def instructions(text: str) -> list[Instruction]:
    """Returns a program's instructions in their order."""
    found = []
    computation = ""
    is_entry = False
    for line in text.splitlines():
        header = _HEADER.match(line)
        if header:
            is_entry = header[1] is not None
            computation = header[2]
            continue
        matched = _INSTRUCTION.match(line)
        if matched:
            root, name, kind, opcode, listed, attributes = matched.groups()
            operands = []
            for operand in filter(str.strip, _COMMENT.sub("", listed).split(",")):
                # Some versions print the operand's type before its name.
                operands.append(operand.split("%")[-1].strip())
            found.append(Instruction(computation, is_entry, bool(root), name, kind, opcode, operands, attributes))
    return found


def run_counts(program: Sequence[Instruction]) -> dict[str, int]:
    """Returns each computation -> how often one run of the program runs it.

    The body of a loop of known length, such as a scan's, runs once per turn; any other loop counts once, as a call's
    loop over its steps.
    """
    limits = _loop_limits(program)
    # Computation -> the computations that call it, and how often each call runs it.
    callers: dict[str, list[tuple[str, int]]] = defaultdict(list)
    for instruction in program:
        called = instruction.called()
        known = _TRIP_COUNT.search(instruction.attributes)
        count = 1
        for name, attribute in called.items():
            if attribute == "condition":
                count = limits.get(name, 1)
        if known:
            count = int(known[1])
        for name in called:
            callers[name].append((instruction.computation, count))

    @cache
    def run_count(name: str) -> int:
        return max((trips * run_count(caller) for caller, trips in callers.get(name, [])), default=1)

    return {instruction.computation: run_count(instruction.computation) for instruction in program}


def _loop_limits(program: Sequence[Instruction]) -> dict[str, int]:
    """Returns the condition of each loop that counts to a constant -> that constant.

    Only the compiler of TPUs prints no `known_trip_count`. The loops of JAX's scans, and those that XLA makes, count
    from 0 in steps of 1.
    """
    limits: dict[str, int] = {}
    constants: dict[tuple[str, str], int] = {}
    for instruction in program:
        if instruction.opcode == "constant" and instruction.type.startswith("s32[]"):
            constants[instruction.computation, instruction.name] = int(instruction.operands[0])
        if instruction.is_root and instruction.opcode == "compare" and "direction=LT" in instruction.attributes:
            limit = constants.get((instruction.computation, instruction.operands[1]))
            if limit is not None:
                limits[instruction.computation] = limit
    return limits


def widened_bf16(program: Sequence[Instruction]) -> set[str]:
    """Returns the names of float32 instructions that XLA widened from bfloat16.

    CPUs don't compute in bfloat16, so a program for CPUs communicates in 32 bits what other devices communicate in 16:
    it is converted first, or its reduction has a name that ends in `promoted`.
    """
    bf16_names = set[str]()
    widened = set[str]()
    # Computations whose result is widened.
    computations = set[str]()
    for instruction in program:
        if instruction.type.startswith("bf16["):
            bf16_names.add(instruction.name)
            continue
        is_widened = False
        if instruction.opcode == "convert":
            is_widened = instruction.operands[0] in bf16_names
        elif instruction.opcode in _MOVES:
            is_widened = instruction.operands[0] in widened
        elif instruction.opcode == "fusion":
            is_widened = not computations.isdisjoint(instruction.called())
        if is_widened:
            widened.add(instruction.name)
            if instruction.is_root:
                computations.add(instruction.computation)
    return widened


def source_target_pairs(attributes: str) -> list[tuple[int, int]] | None:
    """Returns a collective-permute's pairs of devices. Returns None for a collective that has groups."""
    listed = re.search(r"source_target_pairs=\{(.*?)\}\}?(?:,|$)", attributes)
    if listed is None:
        return None
    pairs = []
    for source, target in re.findall(r"(\d+),(\d+)", listed[0]):
        pairs.append((int(source), int(target)))
    return pairs


def replica_groups(attributes: str, devices: int) -> list[list[int]]:
    """Returns the devices of each group of a collective, from any of three forms; raises EngineError for a fourth."""
    mesh = re.search(r"replica_groups=mesh\[([^\]]*)\](?:, device_ids=\(([^{]*)\))? *\{([^}]*)\}", attributes)
    if mesh:
        return _mesh_groups(mesh[1], mesh[2] or "", mesh[3])
    tiled = re.search(r"replica_groups=\[([\d,]+)\]<=(\[[\d,]+\](?:T\([\d,]+\))?)", attributes)
    if tiled:
        groups: list[list[int]] = _device_ids(tiled[2]).reshape(integers(tiled[1])).tolist()
        return groups
    listed = re.search(r"replica_groups=\{((?:\{[\d,]*\},?)*)\}", attributes)
    if listed:
        # An empty list of groups means one group of all devices.
        every_device = [list(range(devices))]
        return list(map(integers, re.findall(r"\{([\d,]*)\}", listed[1]))) or every_device
    raise EngineError(f"XLA's replica groups have an unknown form: {attributes[:200]}")


def integers(text: str) -> list[int]:
    """Returns the numbers of a list such as `2,4`, none of an empty text."""
    return list(map(int, filter(None, text.split(","))))


def _device_ids(text: str) -> npt.NDArray[np.int64]:
    """Returns device numbers (N,) of `[2,4]T(1,0)`: row-major over 2 x 4, then read with the dims swapped."""
    matched = re.fullmatch(r"\[([\d,]+)\](?:T\(([\d,]+)\))?", text)
    if matched is None:
        raise EngineError(f"XLA's device numbers have an unknown form: {text[:200]}")
    shape = integers(matched[1])
    ids = np.arange(math.prod(shape)).reshape(shape)
    if matched[2]:
        ids = ids.transpose(integers(matched[2]))
    return ids.reshape(-1)


def _mesh_groups(shape: str, order: str, chosen: str) -> list[list[int]]:
    """Returns the groups along the chosen axes of a mesh of XLA's own, such as `'axis_0'=2,'axis_1'=4`.

    Of the chosen ones, `'axis_1':(1)2` is the first factor of 2 of an axis. The order of devices is in the form of
    `_device_ids`, or empty.
    """
    sizes = {name: int(size) for name, size in re.findall(r"'([^']+)'=(\d+)", shape)}
    ids = _device_ids(order or f"[{math.prod(sizes.values())}]")
    places = np.unravel_index(np.arange(len(ids)), tuple(sizes.values()))
    # The devices of a group have the same coordinates, apart from the chosen factors.
    coordinates = dict(zip(sizes, places, strict=True))
    for name, before, size in re.findall(r"'([^']+)'(?::\((\d+)\)(\d+))?", chosen):
        factor = int(size or sizes[name])
        stride = sizes[name] // (int(before or 1) * factor)
        coordinates[name] = coordinates[name] - coordinates[name] // stride % factor * stride
    groups: dict[tuple[int, ...], list[int]] = defaultdict(list)
    for device, *key in zip(ids.tolist(), *coordinates.values(), strict=True):
        groups[tuple(key)].append(device)
    return list(groups.values())

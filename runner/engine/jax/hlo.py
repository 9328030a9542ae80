"""Reads the text of a program that XLA compiled: how often lines run, bfloat16 values, groups of devices."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache

import numpy as np
import numpy.typing as npt

from runner.engine.axes import groups_along
from runner.errors import EngineError

# The first line of a computation: `%region_1 (arg: f32[2]) -> f32[2] {`, or `ENTRY %main ...`.
_HEADER = re.compile(r"^(?:ENTRY )?%?([\w.-]+) \(.*\{\s*$")
_TRIP_COUNT = re.compile(r'"known_trip_count":\{"n":"(\d+)"\}')
_CONDITION = re.compile(r" while\(.*\bcondition=%?([\w.-]+)")
_CONSTANT = re.compile(r"^\s*%?([\w.-]+) = s32\[\]\S* constant\((\d+)\)")
_LIMIT = re.compile(r"^\s*ROOT %?[\w.-]+ = pred\[\]\S* compare\(%?[\w.-]+, %?([\w.-]+)\), direction=LT")
_OPERATION = re.compile(r"op_name=\"([^\"]*)\"")
_CALLED = re.compile(r"\b(?:body|to_apply|calls|condition|true_computation|false_computation)=%?([\w.-]+)")
_BRANCHES = re.compile(r"\bbranch_computations=\{([^}]*)\}")

# Name, element type, operation, first operand and attributes of an instruction.
_INSTRUCTION = re.compile(r"^\s*(ROOT )?%?([\w.-]+) = ([a-z]+\d*)\w*\[[\d,]*\]\S* ([\w-]+)\(%?([\w.-]*)(.*)$")
_CALLS = re.compile(r"\bcalls=%?([\w.-]+)")
_PROMOTED = re.compile(r"\bto_apply=%?[\w.-]*promoted")
# Operations that leave an array's elements as they are.
_MOVES = ("copy", "bitcast", "reshape", "transpose")


@dataclass(frozen=True)
class Line:
    """A line of a program, the computation that it is in, and how often one run of the program runs it."""

    text: str
    computation: str
    count: int


def lines(text: str) -> Iterator[Line]:
    """Yields a program's lines, each with how often one run of it runs the line.

    The body of a loop of known length, such as a scan's, runs once per turn; any other loop counts once, as a call's
    loop over its steps.
    """
    limits = _loop_limits(text)
    # Computation -> the computations that call it, and how often each call runs it.
    callers: dict[str, list[tuple[str, int]]] = {}
    for line, computation in _located(text):
        count = _trip_count(line, limits)
        for called in _called(line):
            callers.setdefault(called, []).append((computation, count))

    @cache
    def run_count(name: str) -> int:
        return max((trips * run_count(caller) for caller, trips in callers.get(name, [])), default=1)

    for line, computation in _located(text):
        yield Line(line, computation, run_count(computation))


def _located(text: str) -> Iterator[tuple[str, str]]:
    """Yields each line with the name of the computation that it is in."""
    computation = ""
    for line in text.splitlines():
        header = _HEADER.match(line)
        if header:
            computation = header[1]
        yield line, computation


def calling_operations(text: str) -> dict[str, str]:
    """Returns each computation -> the JAX operation of an instruction that calls it; those inside may name none."""
    operations: dict[str, str] = {}
    for line in text.splitlines():
        operation = _OPERATION.search(line)
        if operation:
            for called in _called(line):
                operations.setdefault(called, operation[1])
    return operations


def _loop_limits(text: str) -> dict[str, int]:
    """Returns the condition of each loop that counts to a constant -> that constant.

    Only the compiler of TPUs prints no `known_trip_count`, so the result is empty for other programs. The loops of
    JAX's scans, and those that XLA makes, count from 0 in steps of 1.
    """
    limits: dict[str, int] = {}
    if _TRIP_COUNT.search(text):
        return limits
    constants: dict[tuple[str, str], int] = {}
    for line, computation in _located(text):
        constant = _CONSTANT.match(line)
        if constant:
            constants[computation, constant[1]] = int(constant[2])
        limit = _LIMIT.match(line)
        if limit and (computation, limit[1]) in constants:
            limits[computation] = constants[computation, limit[1]]
    return limits


def _trip_count(line: str, limits: Mapping[str, int]) -> int:
    """Returns how often an instruction runs what it calls."""
    known = _TRIP_COUNT.search(line)
    if known:
        return int(known[1])
    loop = _CONDITION.search(line)
    if loop is None:
        return 1
    return limits.get(loop[1], 1)


def _called(line: str) -> list[str]:
    called: list[str] = _CALLED.findall(line)
    branches = _BRANCHES.search(line)
    if branches:
        for name in branches[1].split(","):
            called.append(name.strip().lstrip("%"))
    return called


def widened_bf16(text: str) -> set[str]:
    """Returns the names of float32 instructions that XLA widened from bfloat16.

    CPUs don't compute in bfloat16, so a program for CPUs communicates in 32 bits what other devices communicate in 16:
    it is converted first, or its reduction has a name that ends in `promoted` (`reduces_bf16`).
    """
    bf16_names = set[str]()
    widened = set[str]()
    # Computation -> name of its root instruction.
    roots = dict[str, str]()
    for line, computation in _located(text):
        instruction = _INSTRUCTION.match(line)
        if instruction is None:
            continue
        root, name, element_type, operation, operand, attributes = instruction.groups()
        if root:
            roots[computation] = name
        if element_type == "bf16":
            bf16_names.add(name)
            continue
        called = _CALLS.search(attributes)
        is_conversion = operation == "convert" and operand in bf16_names
        is_move = operation in _MOVES and operand in widened
        is_fusion = operation == "fusion" and called is not None and roots.get(called[1]) in widened
        if is_conversion or is_move or is_fusion:
            widened.add(name)
    return widened


def reduces_bf16(attributes: str) -> bool:
    """Returns whether a collective reduces bfloat16 values in float32."""
    return _PROMOTED.search(attributes) is not None


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
    sizes: dict[str, int] = {}
    # An axis of 8 whose factor (2)2 is chosen is cut at 1, 2, 4 and 8: into factors of 2, 2 and 2.
    cuts: dict[str, list[int]] = {}
    for name, size in re.findall(r"'([^']+)'=(\d+)", shape):
        sizes[name] = int(size)
        cuts[name] = [1, int(size)]
    chosen_spans: list[tuple[str, int, int]] = []
    for name, before, size in re.findall(r"'([^']+)'(?::\((\d+)\)(\d+))?", chosen):
        start, stop = 1, sizes[name]
        if before:
            start = int(before)
            stop = start * int(size)
        cuts[name] = sorted({*cuts[name], start, stop})
        chosen_spans.append((name, start, stop))

    def is_chosen(name: str, low: int, high: int) -> bool:
        return any(span == name and start <= low and high <= stop for span, start, stop in chosen_spans)

    factor_sizes: list[int] = []
    group_dims: list[int] = []
    for name, points in cuts.items():
        for low, high in itertools.pairwise(points):
            if is_chosen(name, low, high):
                group_dims.append(len(factor_sizes))
            factor_sizes.append(high // low)
    ids = _device_ids(order or f"[{math.prod(sizes.values())}]").reshape(factor_sizes)
    return groups_along(ids, group_dims)

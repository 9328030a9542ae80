"""Which float32 values of a program for CPUs are bfloat16 ones that XLA widened, as CPUs don't compute in it.

What other devices communicate in 16 bits is there a conversion to float32 and a collective of that, or a reduction
whose name ends in `promoted`.
"""

from __future__ import annotations

import re

_HEADER = re.compile(r"^(?:ENTRY )?%?([\w.-]+) \(.*\{\s*$")
_INSTRUCTION = re.compile(r"^\s*(ROOT )?%?([\w.-]+) = ([a-z]+\d*)\w*\[[\d,]*\]\S* ([\w-]+)\(%?([\w.-]*)(.*)$")
_CALLS = re.compile(r"\bcalls=%?([\w.-]+)")
_PROMOTED = re.compile(r"\bto_apply=%?[\w.-]*promoted")
_MOVES = ("copy", "bitcast", "reshape", "transpose")


def promoted(rest: str) -> bool:
    """Tells whether a collective's attributes say that it reduces bfloat16 values in float32."""
    return _PROMOTED.search(rest) is not None


def widened(text: str) -> set[str]:
    """Returns the names of instructions that give bfloat16 values in float32.

    Args:
      text: the compiled program, as XLA prints it; in it an operand stands before what takes it.
    """
    narrow = set[str]()
    found = set[str]()
    roots = dict[str, str]()
    inside = ""
    for line in text.splitlines():
        if header := _HEADER.match(line):
            inside = header[1]
        if not (matched := _INSTRUCTION.match(line)):
            continue
        root, name, kind, operation, operand, rest = matched.groups()
        if root:
            roots[inside] = name
        if kind == "bf16":
            narrow.add(name)
            continue
        called = _CALLS.search(rest)
        converts = operation == "convert" and operand in narrow
        moves = operation in _MOVES and operand in found
        if converts or moves or (operation == "fusion" and called and roots.get(called[1]) in found):
            found.add(name)
    return found

"""How often each part of a program of XLA's runs: the body of a loop of known length, as a scan's, once a turn."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

_HEADER = re.compile(r"^(?:ENTRY )?%?([\w.-]+) \(.*\{\s*$")
_TURNS = re.compile(r'"known_trip_count":\{"n":"(\d+)"\}')
_CALLED = re.compile(r"\b(?:body|to_apply|calls|condition|true_computation|false_computation)=%?([\w.-]+)")
_BRANCHES = re.compile(r"\bbranch_computations=\{([^}]*)\}")


def lines(text: str) -> Iterator[tuple[str, int]]:
    """Yields a program's lines, each with how often a run of the program comes by.

    A loop whose number of turns the program does not know counts once: such is a call's loop over its steps.

    Args:
      text: the compiled program, as XLA prints it.
    """
    callers: dict[str, list[tuple[str, int]]] = {}
    inside = ""
    for line in text.splitlines():
        inside = _within(line, inside)
        turns = _TURNS.search(line)
        for called in _called(line):
            callers.setdefault(called, []).append((inside, int(turns.group(1)) if turns else 1))
    inside = ""
    known = dict[str, int]()
    for line in text.splitlines():
        inside = _within(line, inside)
        yield line, _times(inside, callers, known)


def _within(line: str, before: str) -> str:
    """Returns the name of the computation that a line is of."""
    header = _HEADER.match(line)
    return header.group(1) if header else before


def _called(line: str) -> list[str]:
    branches = _BRANCHES.search(line)
    listed = [name.strip().lstrip("%") for name in branches.group(1).split(",")] if branches else []
    return [*_CALLED.findall(line), *listed]


def _times(name: str, callers: Mapping[str, list[tuple[str, int]]], known: dict[str, int]) -> int:
    """Returns how often a computation runs; XLA prints none that calls itself."""
    if name not in known:
        known[name] = max(
            (turns * _times(caller, callers, known) for caller, turns in callers.get(name, [])), default=1
        )
    return known[name]

"""Equal blocks of a model as one: of a transformer's twelve the first is shown, with how many there are."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby

from runner.plan.base import VariablePlan

_FEWEST = 3  # blocks that are worth folding
_NUMBERED = re.compile(r"((?:[^/]*/)*?[^/]*?)(\d+)/(.+)")  # as block_3/attention/kernel: the outermost number counts


@dataclass(frozen=True)
class Fold:
    """Blocks whose variables are equal but for the block's number, or one variable.

    Attributes:
      name: `block_0 ... block_11 (x12)`; empty of one variable that stands for itself.
      count: blocks.
      variables: of the first block, named within it; or the one variable.
    """

    name: str
    count: int
    variables: tuple[VariablePlan, ...]


def folded(variables: Sequence[VariablePlan]) -> list[Fold]:
    """Returns variables in order, three or more equal blocks that follow each other as one."""
    found: list[Fold] = []
    for blocks in _alike(_blocks(variables)):
        if len(blocks) < _FEWEST or not blocks[0].head:
            found += [Fold("", 1, (one,)) for block in blocks for one in block.whole]
            continue
        first = blocks[0]
        last = blocks[-1]
        short = first.head.rpartition("/")[2]
        name = f"{first.head}{first.number} ... {short}{last.number} (x{len(blocks)})"
        found.append(Fold(name, len(blocks), first.named_within))
    return found


@dataclass(frozen=True)
class _Block:
    """Variables that follow each other and share the outermost number of their paths."""

    head: str
    number: int
    whole: tuple[VariablePlan, ...]

    @property
    def named_within(self) -> tuple[VariablePlan, ...]:
        start = len(f"{self.head}{self.number}/")
        return tuple(replace(one, path=one.path[start:]) for one in self.whole)


def _blocks(variables: Sequence[VariablePlan]) -> list[_Block]:
    def place(variable: VariablePlan) -> tuple[str, int]:
        match = _NUMBERED.fullmatch(variable.path)
        return (match[1], int(match[2])) if match else ("", 0)

    return [_Block(head, number, tuple(group)) for (head, number), group in groupby(variables, place)]


def _alike(blocks: Sequence[_Block]) -> list[list[_Block]]:
    """Returns the blocks in groups of equal ones whose numbers follow each other."""
    groups: list[list[_Block]] = []
    for block in blocks:
        last = groups[-1][-1] if groups else None
        if (
            last is not None
            and (last.head, last.number + 1) == (block.head, block.number)
            and last.named_within == block.named_within
        ):
            groups[-1].append(block)
        else:
            groups.append([block])
    return groups

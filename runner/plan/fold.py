"""Equal blocks shown once.

Of a transformer's twelve blocks, the first is shown, with their number.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby

from runner.plan.base import VariablePlan

# Two equal blocks are still read faster one after the other than as a block and a count.
_FEWEST_BLOCKS = 3
# A path with a number, such as block_3/attention/kernel. The outermost number is the block's.
_NUMBERED = re.compile(r"((?:[^/]*/)*?[^/]*?)(\d+)/(.+)")


@dataclass(frozen=True)
class Fold:
    """Blocks that are equal except for their numbers, or one variable.

    Attributes:
      name: `block_0 ... block_11 (x12)`; empty for a single variable.
      count: number of blocks.
      variables: the variables of the first block, with paths relative to the block; or the single variable.
    """

    name: str
    count: int
    variables: tuple[VariablePlan, ...]

    @property
    def bytes(self) -> int:
        """Returns the bytes of all blocks, whole."""
        return self.count * sum(variable.bytes for variable in self.variables)

    @property
    def bytes_per_device(self) -> int:
        """Returns the bytes of all blocks on one device."""
        return self.count * sum(variable.bytes_per_device for variable in self.variables)

    @property
    def moved_bytes(self) -> int:
        """Returns the bytes that are communicated for all blocks in one step."""
        return self.count * sum(variable.moved_bytes for variable in self.variables)


def unfolded(variables: Sequence[VariablePlan]) -> list[Fold]:
    """Returns each variable by itself."""
    return [Fold("", 1, (variable,)) for variable in variables]


def folded(variables: Sequence[VariablePlan]) -> list[Fold]:
    """Returns variables in order, with three or more consecutive equal blocks as one."""
    folds: list[Fold] = []
    for blocks in _equal_runs(_blocks(variables)):
        first = blocks[0]
        last = blocks[-1]
        # Variables without a number are not blocks, however many follow each other.
        if len(blocks) < _FEWEST_BLOCKS or not first.prefix:
            for block in blocks:
                folds += unfolded(block.variables)
            continue
        last_name = f"{first.prefix.rpartition('/')[2]}{last.number}"
        name = f"{first.prefix}{first.number} ... {last_name} (x{len(blocks)})"
        folds.append(Fold(name, len(blocks), first.relative_variables))
    return folds


@dataclass(frozen=True)
class _Block:
    """Consecutive variables that share the outermost number of their paths.

    Attributes:
      prefix: the paths up to the number; empty if they have none.
      number: the block's.
      variables: with whole paths.
    """

    prefix: str
    number: int
    variables: tuple[VariablePlan, ...]

    @property
    def relative_variables(self) -> tuple[VariablePlan, ...]:
        start = len(f"{self.prefix}{self.number}/")
        return tuple(replace(variable, path=variable.path[start:]) for variable in self.variables)

    def follows(self, other: _Block) -> bool:
        """Returns whether this block is the next after another and equal to it."""
        is_next = (self.prefix, self.number) == (other.prefix, other.number + 1)
        return is_next and self.relative_variables == other.relative_variables


def _blocks(variables: Sequence[VariablePlan]) -> list[_Block]:
    def prefix_and_number(variable: VariablePlan) -> tuple[str, int]:
        match = _NUMBERED.fullmatch(variable.path)
        if match is None:
            return "", 0
        return match[1], int(match[2])

    blocks = []
    for (prefix, number), group in groupby(variables, prefix_and_number):
        blocks.append(_Block(prefix, number, tuple(group)))
    return blocks


def _equal_runs(blocks: Sequence[_Block]) -> list[list[_Block]]:
    """Returns the blocks in runs of consecutive equal ones."""
    runs: list[list[_Block]] = []
    for block in blocks:
        if runs and block.follows(runs[-1][-1]):
            runs[-1].append(block)
        else:
            runs.append([block])
    return runs

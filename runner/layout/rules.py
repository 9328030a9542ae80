"""What one rule does to one variable: catch it, refuse it or pass it on."""

from __future__ import annotations

import heapq
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from runner.config.schema import LayoutConfig, RuleConfig
from runner.layout.axes import data_axes
from runner.layout.specs import Shape, Spec, shard_spec, whole
from runner.layout.transformers import EXPERTS, Structure, place


@dataclass(frozen=True)
class Placement:
    """Where one variable lies.

    Attributes:
      path: canonical path, `layer/variable`.
      shape: the whole variable's shape.
      spec: one entry a dim, an axis name or None.
      rule: index of the rule that caught it, None where none did; proposals of `auto` count on after the config's.
      passed: what each optional rule before that one did not fit, as "layout.rules[2] passed on: axis 'model' of
        size 4 does not divide dim 1 (10)"; and why a rule that knows transformers left it whole.
      reason: why it lies so, of a rule that knows transformers: "4 heads of block_0/attention, model divides them".
    """

    path: str
    shape: Shape
    spec: Spec
    rule: int | None
    passed: tuple[str, ...] = ()
    reason: str = ""

    def shard_shape(self, axes: Mapping[str, int]) -> Shape:
        """Returns the shape that one device of a mesh with these axes holds."""
        return tuple(dim // (axes[axis] if axis else 1) for dim, axis in zip(self.shape, self.spec, strict=True))


@dataclass(frozen=True)
class Misfit:
    """Why a spec can't lie on a variable.

    Attributes:
      problem: as "axis 'model' of size 4 does not divide dim 1 (10)".
      fix: what would work, as an imperative.
    """

    problem: str
    fix: str


@dataclass(frozen=True)
class Catch:
    """A variable's placement, and what is wrong with it: a rule that is not optional does not fit."""

    placement: Placement
    misfits: tuple[Misfit, ...] = ()


# A pattern that only one path matches: characters without a meaning of their own, or escaped punctuation.
_LITERAL = re.compile(r"(?:[^\\.^$*+?{}\[\]|()]|\\[^a-zA-Z0-9])*", re.DOTALL)
_ESCAPED = re.compile(r"\\(.)", re.DOTALL)


class RuleTable:
    """The rules of a layout, prepared so that a variable tries only those that can match it.

    The rules that `layout=auto` proposes and writes match one path each. They are looked up by that path, so that
    placing n variables by n such rules takes n steps. Other patterns are compiled once: `re` itself keeps 512 of them,
    and compiles all again for each variable where there are more.

    Attributes:
      rules: in order.
    """

    def __init__(self, rules: Sequence[RuleConfig]) -> None:
        """Sorts rules by what they match.

        Args:
          rules: in order, checked.
        """
        self.rules = rules
        self._literal: dict[str, list[int]] = {}
        self._patterns: list[tuple[int, re.Pattern[str]]] = []
        for index, rule in enumerate(rules):
            path = only_path(rule.match)
            if path is not None:
                self._literal.setdefault(path, []).append(index)
            else:
                self._patterns.append((index, re.compile(rule.match)))

    def matching(self, path: str) -> Iterator[int]:
        """Yields the indexes of the rules that match a whole path, in order."""
        by_pattern = (index for index, pattern in self._patterns if pattern.fullmatch(path))
        return heapq.merge(self._literal.get(path, ()), by_pattern)

    def matched(self, index: int, paths: Mapping[str, object]) -> list[str]:
        """Returns those of some paths that a rule matches, in their order."""
        match = self.rules[index].match
        only = only_path(match)
        if only is not None:
            return [only] if only in paths else []
        pattern = re.compile(match)
        return [path for path in paths if pattern.fullmatch(path)]


def only_path(match: str) -> str | None:
    """Returns the one path that a pattern matches; None where it may match others."""
    return _ESCAPED.sub(r"\1", match) if _LITERAL.fullmatch(match) else None


def catch(
    table: RuleTable, path: str, shape: Shape, axes: Mapping[str, int], structure: Structure | None = None
) -> Catch:
    """Finds the first rule that matches a variable's whole path and does not pass it on.

    Args:
      table: of the rules in order, checked.
      path: canonical path.
      shape: the whole variable's.
      axes: mesh axis to size.
      structure: of the model that it is of; None: not known.

    Returns:
      The placement; whole where no rule catches the variable, or where the one that does misfits.
    """
    passed: list[str] = []
    for index in table.matching(path):
        rule = table.rules[index]
        if rule.transformer is not None:
            role = structure.roles.get(path) if structure else None
            if role is None or (rule.transformer == EXPERTS and role.experts is None):
                continue
            spec, reason = place(role, shape, rule.transformer, axes, rule.store)
            cut = rule.transformer in spec or EXPERTS in spec
            if not cut and (role.dim is not None or (role.width is not None and not role.adapter)):
                passed.append(reason)
            return Catch(Placement(path, shape, spec, index, tuple(passed), reason))
        if rule.shard is not None:
            first = int(structure is not None and path in structure.stacked)
            spec = shard_spec(shape, rule.shard, axes[rule.shard], rule.min_elements, first)
            return Catch(Placement(path, shape, spec, index, tuple(passed)))
        assert rule.spec is not None, "a rule without spec and shard was not refused"
        found = misfits(rule.spec, shape, axes)
        if not found:
            return Catch(Placement(path, shape, tuple(rule.spec), index, tuple(passed)))
        if not rule.optional:
            return Catch(Placement(path, shape, whole(shape), index, tuple(passed)), tuple(found))
        passed.append(f"layout.rules[{index}] passed on: {found[0].problem}")
    return Catch(Placement(path, shape, whole(shape), None, tuple(passed)))


def misfits(spec: Sequence[str | None], shape: Shape, axes: Mapping[str, int]) -> list[Misfit]:
    """Returns what keeps a spec from lying on a variable; nothing where it fits."""
    if len(spec) != len(shape):
        entries = "1 entry does" if len(spec) == 1 else f"{len(spec)} entries do"
        return [Misfit(f"its {entries} not fit rank {len(shape)}", _mend_rank(spec, shape, axes))]
    return [
        Misfit(
            f"axis {axis!r} of size {axes[axis]} does not divide dim {index} ({dim})",
            mend_divisibility(index, shape, spec, axes),
        )
        for index, (dim, axis) in enumerate(zip(shape, spec, strict=True))
        if axis is not None and dim % axes[axis]
    ]


def _mend_rank(spec: Sequence[str | None], shape: Shape, axes: Mapping[str, int]) -> str:
    axis = next((axis for axis in spec if axis is not None), None)
    fitting = whole(shape) if axis is None else shard_spec(shape, axis, axes[axis])
    return f"give one entry a dim, as spec: {show(fitting)}, or narrow match to variables of rank {len(spec)}"


def mend_divisibility(index: int, shape: Shape, spec: Sequence[str | None], axes: Mapping[str, int]) -> str:
    """Words what works in place of a dim that its axis does not divide: null, another dim, another size."""
    axis = spec[index]
    assert axis is not None
    free = [i for i, dim in enumerate(shape) if spec[i] is None and dim % axes[axis] == 0]
    ways = [f"put null at dim {index}"]
    if free:
        ways.append(f"{axis} at " + " or ".join(f"dim {i} ({shape[i]})" for i in free))
    sizes = near_divisors(shape[index], axes[axis])
    if sizes:
        ways.append(f"give {axis} a size that divides {shape[index]}: {', '.join(map(str, sizes))}")
    return ", or ".join(ways)


def near_divisors(number: int, size: int, most: int = 4) -> list[int]:
    """Returns the divisors of a number above 1 that are nearest to a size, in order."""
    divisors = [divisor for divisor in range(2, number + 1) if number % divisor == 0]
    return sorted(sorted(divisors, key=lambda divisor: (abs(divisor - size), divisor))[:most])


def show(spec: Iterable[str | None]) -> str:
    """Returns a spec as it is typed in an override."""
    return "[" + ",".join("null" if axis is None else axis for axis in spec) + "]"


def alike_once(lines: Iterable[str]) -> list[str]:
    """Returns the first of lines that differ in the numbers of blocks alone, and how many more are like it."""
    alike: dict[str, list[str]] = {}
    for line in lines:
        alike.setdefault(re.sub(r"\d+(?=[/_,])", "", line), []).append(line)
    return [first + (f" (and {len(more)} like it)" if more else "") for first, *more in alike.values()]


def model_axes(config: LayoutConfig, axes: Mapping[str, int]) -> dict[str, int]:
    """Returns the axes of more than one device that split no dim of a batch: those are there to split weights."""
    taken = data_axes(config, axes)
    return {axis: size for axis, size in axes.items() if size > 1 and axis not in taken}

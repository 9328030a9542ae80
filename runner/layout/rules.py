"""Effect of one rule on one variable: it places the variable, skips it or does not fit."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from runner.config.schema import LayoutConfig, RuleConfig
from runner.layout.axes import Shape, Spec, axis_size, data_axes, replicated, shard_spec
from runner.layout.transformers import EXPERTS, Structure, place

# The number of a block: digits within a path, or at its end in a line of text.
_BLOCK_NUMBER = re.compile(r"\d+(?=[/_,])")


@dataclass(frozen=True)
class Placement:
    """Sharding of one variable.

    Attributes:
      shape: the whole variable's.
      spec: one entry per dim, an axis name or None.
      rule: index of the rule that matched, None if none did; proposals of `auto` are numbered after the config's.
      passed: reasons of the optional rules that were skipped, for example "layout.rules[2] skipped: axis 'model' of
        size 4 does not divide dim 1 (10)"; and the reason of a transformer rule that left it replicated.
      reason: of a transformer rule, for example "4 heads of block_0/attention, model divides them".
    """

    path: str
    shape: Shape
    spec: Spec
    rule: int | None
    passed: tuple[str, ...] = ()
    reason: str = ""

    def shard_shape(self, axes: Mapping[str, int]) -> Shape:
        """Returns the shape of the shard on one device of a mesh with these axes."""
        return tuple(size // axis_size(axes, axis) for size, axis in zip(self.shape, self.spec, strict=True))


@dataclass(frozen=True)
class Misfit:
    """Why a spec does not fit a variable ("axis 'model' of size 4 does not divide dim 1 (10)"), and an imperative."""

    problem: str
    fix: str


def first_match(
    rules: Sequence[RuleConfig],
    patterns: Sequence[re.Pattern[str]],
    path: str,
    shape: Shape,
    axes: Mapping[str, int],
    structure: Structure,
) -> tuple[Placement, list[Misfit]]:
    """Places a variable by the first rule that matches it and does not skip it; `patterns` are those of the rules.

    It is replicated if no rule matches, or, with misfits, if the one that does is not optional and does not fit.
    """
    skipped: list[str] = []
    for index, (rule, pattern) in enumerate(zip(rules, patterns, strict=True)):
        if not pattern.fullmatch(path):
            continue
        if rule.transformer is not None:
            role = structure.roles.get(path)
            # A variable that is not part of a transformer is left to the next rule.
            if role is None or (rule.transformer == EXPERTS and role.experts is None):
                continue
            spec, reason = place(role, shape, rule.transformer, axes, rule.store)
            is_sharded_by_units = rule.transformer in spec or EXPERTS in spec
            could_be_sharded = role.dim is not None or (role.width is not None and not role.adapter)
            if could_be_sharded and not is_sharded_by_units:
                skipped.append(reason)
            return Placement(path, shape, spec, index, tuple(skipped), reason), []
        if rule.shard is not None:
            first_dim = structure.first_dim(path)
            spec = shard_spec(shape, rule.shard, axes[rule.shard], rule.min_elements, first_dim)
            return Placement(path, shape, spec, index, tuple(skipped)), []
        assert rule.spec is not None, "a rule without spec, shard and transformer has passed the checks"
        rule_misfits = misfits(rule.spec, shape, axes)
        if not rule_misfits:
            return Placement(path, shape, tuple(rule.spec), index, tuple(skipped)), []
        if not rule.optional:
            return Placement(path, shape, replicated(shape), index, tuple(skipped)), rule_misfits
        skipped.append(f"layout.rules[{index}] skipped: {rule_misfits[0].problem}")
    return Placement(path, shape, replicated(shape), None, tuple(skipped)), []


def misfits(spec: Sequence[str | None], shape: Shape, axes: Mapping[str, int]) -> list[Misfit]:
    """Returns the reasons why a spec does not fit a variable; none if it fits."""
    if len(spec) != len(shape):
        entries = f"{len(spec)} entries do"
        if len(spec) == 1:
            entries = "1 entry does"
        fix = f"give one entry per dim, {len(shape)}, or narrow match to variables of rank {len(spec)}"
        return [Misfit(f"its {entries} not fit rank {len(shape)}", fix)]
    reasons = []
    for dim, (size, axis) in enumerate(zip(shape, spec, strict=True)):
        if axis is not None and size % axes[axis]:
            problem = f"axis {axis!r} of size {axes[axis]} does not divide dim {dim} ({size})"
            reasons.append(Misfit(problem, divisibility_fix(dim, shape, spec, axes)))
    return reasons


def divisibility_fix(dim: int, shape: Shape, spec: Sequence[str | None], axes: Mapping[str, int]) -> str:
    """Returns the fix for a dim that its axis does not divide: null, or another dim."""
    axis = spec[dim]
    assert axis is not None
    ways = [f"put null at dim {dim}"]
    for other, size in enumerate(shape):
        if spec[other] is None and size % axes[axis] == 0:
            ways.append(f"{axis} at dim {other} ({size})")
    return ", or ".join([*ways, f"give {axis} a size that divides {shape[dim]}"])


def show(spec: Iterable[str | None]) -> str:
    """Returns a spec as it is typed in an override."""
    return "[" + ",".join("null" if axis is None else axis for axis in spec) + "]"


def alike_once(lines: Iterable[str]) -> list[str]:
    """Returns the first of lines that differ only in the numbers of blocks, with the number of lines like it."""
    alike: dict[str, list[str]] = {}
    for line in lines:
        alike.setdefault(_BLOCK_NUMBER.sub("", line), []).append(line)
    summaries = []
    for first, *others in alike.values():
        summary = first
        if others:
            summary += f" (and {len(others)} like it)"
        summaries.append(summary)
    return summaries


def model_axes(config: LayoutConfig, axes: Mapping[str, int]) -> dict[str, int]:
    """Returns the axes of several devices that shard no dim of a batch, and so are free to shard weights."""
    taken = data_axes(config, axes)
    return {axis: size for axis, size in axes.items() if size > 1 and axis not in taken}

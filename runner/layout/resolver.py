"""Rules and variables -> one placement a variable, or a refusal; and warnings about placements that waste memory."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Mapping

from runner.config.schema import LayoutConfig
from runner.errors import ConfigError, invalid
from runner.layout import transformers
from runner.layout.auto import propose
from runner.layout.rules import Catch, Placement, RuleTable, alike_once, catch, model_axes, show
from runner.layout.specs import Shape

LARGE = 1024  # elements; below that a warning costs more attention than the variable costs memory


def expand(config: LayoutConfig, variables: Mapping[str, Shape], axes: Mapping[str, int]) -> LayoutConfig:
    """Returns the config with the proposals of `auto` as rules after its own; unchanged where `auto` is false."""
    if not config.auto:
        return config
    proposed = [proposal.rule for proposal in propose(variables, config, axes)]
    return dataclasses.replace(config, auto=False, rules=[*config.rules, *proposed])


def resolve(config: LayoutConfig, variables: Mapping[str, Shape], axes: Mapping[str, int]) -> dict[str, Placement]:
    """Gives every variable its exact spec.

    Args:
      config: rules in order; the first whose pattern matches the whole path wins. With `auto`, what they leave is
        placed by proposals.
      variables: canonical path to shape.
      axes: mesh axis to size.

    Returns:
      Canonical path to placement; a variable that no rule catches is replicated.

    Raises:
      ConfigError: a spec of another rank, a dim that the axis does not divide, or a rule that catches nothing; the
        first of them in words, and how many more there are.
    """
    table = RuleTable(expand(config, variables, axes).rules)
    structure = transformers.read(variables)
    caught = {path: catch(table, path, shape, axes, structure) for path, shape in variables.items()}
    problems = [*_misfits(config, caught), *_idle_rules(config, caught)]
    if problems:
        more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
        raise ConfigError(f"{problems[0]}{more}")
    return {path: each.placement for path, each in caught.items()}


def _misfits(config: LayoutConfig, caught: Mapping[str, Catch]) -> list[ConfigError]:
    found = []
    for path, each in caught.items():
        for misfit in each.misfits:
            index = each.placement.rule
            assert index is not None
            found.append(
                invalid(
                    f"layout.rules[{index}].spec",
                    show(config.rules[index].spec or []),
                    problem=f"{misfit.problem} of {path}, shape {list(each.placement.shape)}",
                    fix=misfit.fix,
                )
            )
    return found


def _idle_rules(config: LayoutConfig, caught: Mapping[str, Catch]) -> list[ConfigError]:
    """Words each rule that is not optional and catches nothing: it matches nothing, or earlier ones shadow it."""
    used = {each.placement.rule for each in caught.values()}
    table = RuleTable(config.rules)
    found = []
    for index, rule in enumerate(config.rules):
        if index in used or rule.optional:
            continue
        matched = table.matched(index, caught)
        if rule.transformer is not None:
            why = "no attention, feed-forward or vocabulary is known by paths and shapes, or earlier rules caught it"
            fix = "mark it optional: true, or write rules with spec"
        elif matched:
            earlier = sorted({caught[path].placement.rule or 0 for path in matched})
            names = ", ".join(f"layout.rules[{each}]" for each in earlier)
            why = f"earlier rules catch all that it matches: {names}"
            fix = "move it up or drop it"
        else:
            why = f"variables are {_names(caught)}"
            fix = "fix its match, drop it or mark it optional: true"
        found.append(
            invalid(f"layout.rules[{index}].match", rule.match, problem=f"it catches no variable ({why})", fix=fix)
        )
    return found


def _names(paths: Mapping[str, object], most: int = 12) -> str:
    rest = f" and {len(paths) - most} more" if len(paths) > most else ""
    return ", ".join(itertools.islice(paths, most)) + rest


def lint(
    config: LayoutConfig,
    variables: Mapping[str, Shape],
    axes: Mapping[str, int],
    placed: Mapping[str, Placement] | None = None,
) -> list[str]:
    """Says what works but is hardly meant.

    A large variable (of 1,024 elements at least) that is whole on a mesh with a model axis, an axis of more than one
    device that splits no dim of the inputs: of the largest quarter each, of the others each kernel that no rule left
    whole with a reason. And a `shard` rule that splits nothing.

    Args:
      config: as for `resolve`.
      variables: canonical path to shape.
      axes: mesh axis to size.
      placed: as the engine placed them, where `from_model` says more than the config; None: as `resolve` does.

    Returns:
      One line a warning, of equal blocks once.

    Raises:
      ConfigError: as `resolve`.
    """
    if placed is None:
        placed = resolve(config, variables, axes)
    return [*_whole_though_large(config, placed, axes), *_split_nothing(config, placed, axes)]


def _whole_though_large(config: LayoutConfig, placed: Mapping[str, Placement], axes: Mapping[str, int]) -> list[str]:
    free = model_axes(config, axes)
    if not free:
        return []
    reasons = {}
    if config.auto:
        shapes = {path: placement.shape for path, placement in placed.items()}
        reasons = {proposal.path: proposal.reason for proposal in propose(shapes, config, axes)}
    by_size = sorted(placed.values(), key=lambda placement: -math.prod(placement.shape))
    names = " and ".join(f"{axis!r} of size {size}" for axis, size in free.items())
    return alike_once(
        f"{each.path}, shape {list(each.shape)}, is whole on every device of axis {names}; "
        + (f"layout=auto left it: {reasons[each.path]}" if each.path in reasons else _advice(each, free))
        for place, each in enumerate(by_size)
        if math.prod(each.shape) >= LARGE and not any(axis and axes[axis] > 1 for axis in each.spec)
        if place < -(-len(by_size) // 4) or (_is_kernel(each) and each.path not in reasons)
    )


def _is_kernel(placement: Placement) -> bool:
    """Tells whether it is a kernel of which no rule has said why it is whole."""
    named = "kernel" in placement.path.rpartition("/")[2] and len(placement.shape) > 1
    return named and not placement.reason and not placement.passed


def _advice(placement: Placement, free: Mapping[str, int]) -> str:
    if placement.reason:
        return placement.reason
    if placement.passed:
        return placement.passed[-1]
    for axis, size in free.items():
        fitting = [f"dim {index} ({dim})" for index, dim in enumerate(placement.shape) if dim % size == 0]
        if fitting:
            return f"{axis} divides {', '.join(fitting)}"
    return "none of them divides a dim" if len(free) > 1 else "it divides no dim"


def _split_nothing(config: LayoutConfig, placed: Mapping[str, Placement], axes: Mapping[str, int]) -> list[str]:
    found = []
    by_rule: dict[int | None, list[Placement]] = {}
    for placement in placed.values():
        by_rule.setdefault(placement.rule, []).append(placement)
    for index, rule in enumerate(config.rules):
        mine = by_rule.get(index, [])
        if rule.shard is not None and mine and not any(any(placement.spec) for placement in mine):
            found.append(
                f"layout.rules[{index}] splits none of the {len(mine)} variables that it catches: each has fewer than "
                f"{rule.min_elements} elements or no dim that axis {rule.shard!r} of size {axes[rule.shard]} divides"
            )
    return found

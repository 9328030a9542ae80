"""Resolves rules and variables to one placement per variable, and warns of placements that waste memory."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Mapping, Sequence

from runner.config.schema import LayoutConfig
from runner.errors import ConfigError, invalid
from runner.layout import transformers
from runner.layout.auto import propose
from runner.layout.axes import Shape
from runner.layout.rules import Misfit, Placement, alike_once, first_match, model_axes, show

# Elements from which on a replicated variable is worth a warning: 4 KiB in float32.
LARGE = 1024

# The warnings name the largest variables: one of so many.
_LARGEST_SHARE = 4

# Paths that an error message lists at most.
_MOST_PATHS = 12


def resolve(config: LayoutConfig, variables: Mapping[str, Shape], axes: Mapping[str, int]) -> dict[str, Placement]:
    """Resolves the exact spec of every variable, by the first rule whose pattern matches the whole path.

    With `auto`, proposals place the variables that no rule matches; else these are replicated.

    Raises:
      ConfigError: a spec of another rank, a dim that the axis does not divide, or a rule that matches nothing. The
        message describes the first problem and counts the others.
    """
    # Compiled once: `re` caches 512 patterns only.
    patterns = [re.compile(rule.match) for rule in config.rules]
    structure = transformers.read(variables)
    placed: dict[str, Placement] = {}
    problems: list[ConfigError] = []
    for path, shape in variables.items():
        placed[path], misfits = first_match(config.rules, patterns, path, shape, axes, structure)
        for misfit in misfits:
            problems.append(_misfit(config, placed[path], misfit))
    problems += _unused_rules(config, patterns, placed)
    # A message is one line, which has room for the first problem only.
    if problems:
        message = str(problems[0])
        if len(problems) > 1:
            message += f" (and {len(problems) - 1} more)"
        raise ConfigError(message)
    if config.auto:
        placed |= propose(placed, config, axes, structure)
    return placed


def _misfit(config: LayoutConfig, placement: Placement, misfit: Misfit) -> ConfigError:
    assert placement.rule is not None
    problem = f"{misfit.problem} of {placement.path}, shape {list(placement.shape)}"
    spec = show(config.rules[placement.rule].spec or [])
    return invalid(f"layout.rules[{placement.rule}].spec", spec, problem=problem, fix=misfit.fix)


def _unused_rules(
    config: LayoutConfig, patterns: Sequence[re.Pattern[str]], placed: Mapping[str, Placement]
) -> list[ConfigError]:
    """Returns an error for each rule that is not optional and places no variable."""
    used = {placement.rule for placement in placed.values()}
    errors = []
    for index, rule in enumerate(config.rules):
        # Optional rules are for presets that fit many models, so they need not apply.
        if index in used or rule.optional:
            continue
        matched_paths = list(filter(patterns[index].fullmatch, placed))
        if rule.transformer is not None:
            problem = (
                "applies to no variable (no attention, feed-forward or vocabulary is recognized by paths and shapes, "
                "or earlier rules match them)"
            )
            fix = "mark it optional: true, or write rules with spec"
        elif matched_paths:
            earlier = {placed[path].rule or 0 for path in matched_paths}
            names = ", ".join(f"layout.rules[{other}]" for other in sorted(earlier))
            problem = f"earlier rules match all of its variables ({names})"
            fix = "move it up or remove it"
        else:
            problem = f"matches no variable (the variables are {_listed(placed)})"
            fix = "correct the pattern, remove the rule or mark it optional: true"
        errors.append(invalid(f"layout.rules[{index}].match", rule.match, problem=problem, fix=fix))
    return errors


def _listed(paths: Mapping[str, object]) -> str:
    """Returns the first paths, and the number of the others."""
    shown = ", ".join(itertools.islice(paths, _MOST_PATHS))
    if len(paths) <= _MOST_PATHS:
        return shown
    return f"{shown} and {len(paths) - _MOST_PATHS} more"


def lint(config: LayoutConfig, placed: Mapping[str, Placement], axes: Mapping[str, int]) -> list[str]:
    """Returns warnings about placements that are valid but probably mistakes.

    Of the largest quarter of all variables, they are those of 1,024 elements or more that are replicated on a mesh
    with a model axis, an axis of more than one device that shards no dim of the inputs. Variables that differ only in
    the number of their block share a line.
    """
    free_axes = model_axes(config, axes)
    if not free_axes:
        return []
    axis_names = " and ".join(f"{axis!r} of size {size}" for axis, size in free_axes.items())
    by_size = sorted(placed.values(), key=lambda placement: -math.prod(placement.shape))
    lines = []
    for placement in by_size[: math.ceil(len(by_size) / _LARGEST_SHARE)]:
        path = placement.path
        is_sharded = any(axis and axes[axis] > 1 for axis in placement.spec)
        if is_sharded or math.prod(placement.shape) < LARGE:
            continue
        advice = _advice(placement, free_axes)
        if config.auto and placement.rule is not None and placement.rule >= len(config.rules):
            advice = f"layout=auto left it: {advice}"
        lines.append(f"{path}, shape {list(placement.shape)}, is replicated over axis {axis_names}; {advice}")
    return alike_once(lines)


def _advice(placement: Placement, free_axes: Mapping[str, int]) -> str:
    """Returns why a variable is replicated, else the dims that could be sharded."""
    if placement.reason:
        return placement.reason
    if placement.passed:
        return placement.passed[-1]
    for axis, size in free_axes.items():
        divisible = [f"dim {dim} ({count})" for dim, count in enumerate(placement.shape) if count % size == 0]
        if divisible:
            return f"{axis} divides {', '.join(divisible)}"
    if len(free_axes) > 1:
        return "none of them divides a dim"
    return "it divides no dim"

"""What of a layout can be refused from the config and the mesh alone, and from the specs of the dataset's arrays."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from runner.config import search_path
from runner.config.schema import LayoutConfig, RuleConfig
from runner.errors import ConfigError, did_you_mean, invalid
from runner.layout.axes import BATCH, SEQUENCE, batch_axis
from runner.layout.rules import mend_divisibility, only_path, show
from runner.layout.transformers import EXPERTS

if TYPE_CHECKING:  # NumPy is a third of the time that a refusal takes
    from runner.data.base import ArraySpec

# Records of before name it whatever the dataset's target is called.
_RECORDED = "label"
_ONE_OF = "spec, shard and transformer"
_EVERYTHING = (".*", ".+")  # as a rule's match


def check(config: LayoutConfig, axes: Mapping[str, int]) -> None:
    """Checks rules and inputs against the mesh, before any variable is known.

    Raises:
      ConfigError: a rule without exactly one of spec, shard and transformer, an axis that the mesh lacks or that one
        spec names twice, tokens split over an axis that splits something else, a pattern that does not compile, a rule
        that an earlier one leaves nothing, or inputs of another rank.
    """
    # The rules before, by match, that may shadow one of the same match; and the first that catches every variable.
    same: dict[str, list[int]] = {}
    for index, rule in enumerate(config.rules):
        key = f"layout.rules[{index}]"
        _check_match(key, rule)
        _check_split(key, rule, axes)
        _check_reached(key, rule, [*same.get("", ()), *same.get(rule.match, ())], config.rules)
        if rule.transformer is None:  # it passes on what is no part of a transformer
            catches_all = rule.match in _EVERYTHING and (rule.shard is not None or not rule.optional)
            same.setdefault("" if catches_all else rule.match, []).append(index)
    _check_inputs_form(config, axes)
    if config.sequence is not None:
        _check_sequence(config, config.sequence, axes)
    if config.from_model and config.auto:
        raise invalid("layout.from_model", "true", problem="one of from_model and auto", fix="set layout.auto=false")
    if config.from_model and "model" not in axes:  # the name that the maps give their axis
        raise _no_axis("layout.from_model", "true", "model", axes)


def check_inputs(config: LayoutConfig, arrays: Mapping[str, ArraySpec], batch: int, axes: Mapping[str, int]) -> None:
    """Checks that a batch's arrays can be split as `inputs` says.

    Args:
      config: checked.
      arrays: specs by name.
      batch: examples of a micro-batch.
      axes: mesh axis to size.

    Raises:
      ConfigError: an array that is not there, a spec of another rank, a dim that its axis does not divide, or tokens
        over the axis of a rule that splits heads.
    """
    if config.sequence is not None:
        _check_lengths(config.sequence, {k: v for k, v in arrays.items() if k not in config.inputs}, arrays, axes)
    for name, spec in config.inputs.items():
        key = f"layout.inputs.{name}"
        if name in arrays:
            _check_fits(key, spec, batch, arrays[name], axes)
            for dim, axis in zip(arrays[name].dims, spec[1:], strict=False):  # arrays may have no names of dims
                _check_heads(key, show(spec), axis if dim == SEQUENCE else None, config.rules)
        elif name != _RECORDED or len(spec) != 1:
            raise invalid(
                key,
                show(spec),
                problem=f"one of the dataset's arrays {', '.join(arrays)}",
                fix=did_you_mean(name, list(arrays)),
            )


def _check_sequence(config: LayoutConfig, axis: str, axes: Mapping[str, int]) -> None:
    key = "layout.sequence"
    heads = [rule.transformer for rule in config.rules if rule.transformer is not None]
    if axis not in axes:
        raise _no_axis(key, axis, axis, axes, heads)
    others = [name for name in axes if name not in {axis, *heads}]
    fix = f"set {key}={others[-1]}" if others else "choose a mesh of two axes, as mesh=batch4_sequence2"
    if axis == batch_axis(config, axes):
        raise invalid(key, axis, problem=f"another axis than {axis}, which splits the examples", fix=fix)
    _check_heads(key, axis, axis, config.rules)


def _check_heads(key: str, shown: str, axis: str | None, rules: Sequence[RuleConfig]) -> None:
    """Refuses tokens over the axis of a rule that splits heads: DTensor may compute wrong numbers without an error."""
    for index, rule in enumerate(rules):
        if axis is not None and rule.transformer == axis:
            apart = _axes([SEQUENCE, "model" if axis == SEQUENCE else axis])
            raise invalid(
                key,
                shown,
                problem=f"not layout.rules[{index}].transformer={axis} too: one axis can't split heads and tokens",
                fix=f"choose a mesh with an axis for each, as {apart}",
            )


def _check_lengths(
    axis: str, split: Mapping[str, ArraySpec], arrays: Mapping[str, ArraySpec], axes: Mapping[str, int]
) -> None:
    if not any(SEQUENCE in spec.dims for spec in arrays.values()):
        shown = ", ".join(f"{name} ({', '.join(spec.dims) or 'no names'})" for name, spec in arrays.items())
        raise invalid(
            "layout.sequence",
            axis,
            problem=f"an array with a dim named sequence; there are {shown}",
            fix="leave it out",
        )
    for name, spec in split.items():
        length = spec.shape[spec.dims.index(SEQUENCE)] if SEQUENCE in spec.dims else 0
        if length % axes[axis]:
            lower = length // axes[axis] * axes[axis]
            upper = -(-length // axes[axis]) * axes[axis]
            near = f"{lower} or dataset.sequence_length={upper}" if lower else f"{upper}"
            raise invalid(
                "layout.sequence",
                axis,
                problem=f"axis {axis!r} of size {axes[axis]} does not divide the {length} tokens of {name}",
                fix=f"set dataset.sequence_length={near}",
            )


def _check_fits(key: str, spec: Sequence[str | None], batch: int, array: ArraySpec, axes: Mapping[str, int]) -> None:
    shape = (batch, *array.shape)
    # Dims that have no name go by their number.
    names = ("batch", *(array.dims or [""] * len(array.shape)))
    if len(spec) != len(shape):
        whole = f"[{', '.join(name or str(size) for name, size in zip(names, shape, strict=True))}]"
        example = show((*spec[:1], *["null"] * len(array.shape)))
        raise invalid(
            key, show(spec), problem=f"{len(shape)} entries, one a dim of {whole}", fix=f"write {key}={example}"
        )
    for index, (dim, axis) in enumerate(zip(shape, spec, strict=True)):
        if axis is None or dim % axes[axis] == 0:
            continue
        called = f"dim {index}, the {names[index]} ({dim})," if names[index] else f"dim {index} ({dim})"
        fix = mend_divisibility(index, shape, spec, axes)
        if names[index] in ("height", "width"):
            sizes = {
                name: -(-size // axes[split]) * axes[split] if split else size
                for name, size, split in zip(names, shape, spec, strict=True)
            }
            fix += f", or set dataset.image_size=[{sizes['height']},{sizes['width']}]"
        raise invalid(
            key,
            show(spec),
            problem=f"axis {axis!r} of size {axes[axis]} does not divide {called} of {list(shape)}",
            fix=fix,
        )


def _check_match(key: str, rule: RuleConfig) -> None:
    if not rule.match:
        raise invalid(f"{key}.match", "''", problem="a regular expression", fix="write match: 'd1/kernel'")
    if only_path(rule.match) is not None:
        return
    try:
        re.compile(rule.match)
    except re.error as error:
        raise invalid(
            f"{key}.match", rule.match, problem=f"a regular expression ({error})", fix="escape what is literal"
        ) from error


def _check_split(key: str, rule: RuleConfig, axes: Mapping[str, int]) -> None:
    given = [name for name in ("transformer", "shard", "spec") if getattr(rule, name) is not None]
    if len(given) > 1:
        other = getattr(rule, given[1])
        raise invalid(
            f"{key}.{given[0]}",
            getattr(rule, given[0]),
            problem=f"exactly one of {_ONE_OF}, and {given[1]} is {other if isinstance(other, str) else show(other)}",
            fix="drop one of the two",
        )
    if rule.store is not None and (rule.transformer is None or rule.store in (rule.transformer, EXPERTS)):
        allowed = (
            "only a rule with transformer has it" if rule.transformer is None else "another axis than transformer"
        )
        raise invalid(f"{key}.store", rule.store, problem=allowed, fix="leave store out")
    if rule.min_elements < 0 or (rule.min_elements and rule.shard is None):
        allowed = "0 or more" if rule.min_elements < 0 else "only a rule with shard has it"
        raise invalid(f"{key}.min_elements", rule.min_elements, problem=allowed, fix="leave min_elements out")
    if rule.spec is not None:
        _check_spec(f"{key}.spec", rule.spec, axes)
        return
    if not given:
        raise invalid(
            f"{key}.spec",
            None,
            problem=f"exactly one of {_ONE_OF}, and {rule.match!r} has none",
            fix=f"write spec: [null,{list(axes)[-1]}], one entry a dim, or shard: {list(axes)[-1]}",
        )
    for name in ("transformer", "store", "shard"):
        if (axis := getattr(rule, name)) is not None and axis not in axes:
            raise _no_axis(f"{key}.{name}", axis, axis, axes)


def _check_reached(key: str, rule: RuleConfig, earlier: Iterable[int], rules: Sequence[RuleConfig]) -> None:
    """Refuses a rule to which nothing can come, whatever the variables are.

    Args:
      key: of the rule.
      rule: to check.
      earlier: indexes of the rules before it that have its match or catch every variable.
      rules: all.
    """
    for index in sorted(earlier):
        before = rules[index]
        keeps = before.shard is not None or not before.optional or before.spec == rule.spec
        if before.match == rule.match and keeps:
            what = "has the same match"
        elif before.match in _EVERYTHING and (before.shard is not None or not before.optional):
            what = f"catches every variable ({before.match})"
        else:
            continue
        raise invalid(
            f"{key}.match",
            rule.match,
            problem=f"layout.rules[{index}] before it {what} and shadows it completely",
            fix="drop it or move it up",
        )


def _check_inputs_form(config: LayoutConfig, axes: Mapping[str, int]) -> None:
    if not config.inputs and BATCH not in axes and math.prod(axes.values()) > 1:  # every device would do the same
        raise _no_axis("layout.inputs", "{}", BATCH, axes)
    first: str | None = None
    for name, spec in config.inputs.items():
        key = f"layout.inputs.{name}"
        if not name.isidentifier():
            raise invalid(
                key, show(spec), problem="names of letters, digits and _", fix="name an array of the dataset"
            )
        if not spec:
            raise invalid(key, "[]", problem="an entry a dim, each an axis or null", fix=f"write {key}=[batch]")
        _check_spec(key, spec, axes)
        if first is None:
            first = name
        elif spec[0] != config.inputs[first][0]:
            raise invalid(
                key,
                show(spec),
                problem=f"split like the first dim of {first}, {config.inputs[first][0] or 'null'}",
                fix=f"make the two equal, as {key}={show((config.inputs[first][0], *spec[1:]))}",
            )


def _check_spec(key: str, spec: Sequence[str | None], axes: Mapping[str, int]) -> None:
    for axis in spec:
        if axis is None:
            continue
        if axis not in axes:
            raise _no_axis(key, show(spec), axis, axes)
        if list(spec).count(axis) > 1:
            raise invalid(key, show(spec), problem="an axis may split one dim only", fix=f"replace one {axis} by null")


def _no_axis(
    key: str, shown: str, axis: str, axes: Mapping[str, int], others: Collection[str | None] = ()
) -> ConfigError:
    """Words the refusal of an axis that the mesh has not; `others` are those that the layout needs beside it."""
    fix = did_you_mean(axis, axes, f"add mesh.axes.{axis}=2 or name one of those")
    wanted = [other for other in dict.fromkeys(others) if other is not None and other != axis]
    options = meshes_with(axis)
    both = [option for option in options if all(option in meshes_with(other) for other in wanted)]
    if both:
        fix = f"choose a mesh that has it, as mesh={', mesh='.join(both)}"
    elif options:
        fix = f"choose a mesh with an axis for each, as {_axes([axis, *wanted])}"
    names = f"its axes are {', '.join(axes)}" if len(axes) > 1 else f"its axis is {next(iter(axes))}"
    return invalid(key, shown, problem=f"mesh.axes has no axis {axis!r}, {names}", fix=fix)


def _axes(names: Sequence[str]) -> str:
    """Returns a mesh of its own with these axes beside the examples', as it is typed in a shell."""
    return f"'mesh.axes={{{','.join(f'{name}:2' for name in dict.fromkeys([BATCH, *names]))}}}'"


def meshes_with(axis: str) -> list[str]:
    """Returns the mesh options that have an axis of more than one device."""
    import yaml  # type: ignore[import-untyped] # only a refusal needs it

    found = []
    for name in search_path.options("mesh"):
        with suppress(yaml.YAMLError, OSError, AttributeError):  # a file of the user's, which nobody has asked for
            content: Any = yaml.safe_load(search_path.file_of(f"mesh/{name}").read_text())
            size = (content.get("axes") or {}).get(axis, 1)
            if isinstance(size, int) and size != 1:
                found.append(name)
    return found

"""The rule language of layouts: rules -> one exact spec a variable. Pure Python, the same for every engine."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from runner.errors import ConfigError, refuse
from runner.schema import LayoutConfig

Spec = tuple[str | None, ...]
_INPUT_RANKS = {"image": 4, "label": 1}


@dataclass(frozen=True)
class Placement:
    """Where one variable lies.

    Attributes:
      path: canonical path, `layer/variable`.
      shape: the whole variable's shape.
      spec: one entry a dim, an axis name or None.
      rule: index of the rule that caught it, None where none did.
    """

    path: str
    shape: tuple[int, ...]
    spec: Spec
    rule: int | None

    def shard_shape(self, axes: Mapping[str, int]) -> tuple[int, ...]:
        """Returns the shape that one device of a mesh with these axes holds."""
        return tuple(dim // (axes[axis] if axis else 1) for dim, axis in zip(self.shape, self.spec, strict=True))


def check(config: LayoutConfig, axes: Mapping[str, int]) -> None:
    """Checks rules and inputs against the mesh, before any variable is known.

    Raises:
      ConfigError: an axis that the mesh lacks or that one spec names twice, a pattern that does not compile, or
        inputs of another rank.
    """
    for index, rule in enumerate(config.rules):
        key = f"layout.rules[{index}]"
        try:
            re.compile(rule.match)
        except re.error as error:
            raise refuse(
                f"{key}.match", rule.match, allowed=f"a regular expression ({error})", mend="escape what is literal"
            ) from error
        if not rule.match:
            raise refuse(f"{key}.match", "''", allowed="a regular expression", mend="write match: 'd1/kernel'")
        _check_spec(f"{key}.spec", rule.spec, axes)
    for name in config.inputs:
        if name not in _INPUT_RANKS:
            raise refuse(f"layout.inputs.{name}", config.inputs[name], allowed="image and label", mend="rename it")
    for name, rank in _INPUT_RANKS.items():
        spec = config.inputs.get(name)
        if spec is None or len(spec) != rank:
            raise refuse(
                f"layout.inputs.{name}",
                spec,
                allowed=f"{rank} entries, each an axis or null",
                mend="see layout=replicated",
            )
        _check_spec(f"layout.inputs.{name}", spec, axes)
    if config.inputs["image"][0] != config.inputs["label"][0]:
        raise refuse(
            "layout.inputs.label",
            config.inputs["label"],
            allowed=f"split like the images' first dim, {config.inputs['image'][0]}",
            mend="make the two equal",
        )


def _check_spec(key: str, spec: Sequence[str | None], axes: Mapping[str, int]) -> None:
    shown = "[" + ",".join("null" if axis is None else axis for axis in spec) + "]"
    for axis in spec:
        if axis is not None and axis not in axes:
            raise refuse(
                key,
                shown,
                allowed=f"the mesh has no axis {axis!r}, its axes are {', '.join(axes)}",
                mend=f"add mesh.axes.{axis}=2 or name one of those",
            )
        if axis is not None and list(spec).count(axis) > 1:
            raise refuse(key, shown, allowed="an axis may split one dim only", mend=f"replace one {axis} by null")


def resolve(
    config: LayoutConfig, variables: Mapping[str, tuple[int, ...]], axes: Mapping[str, int]
) -> dict[str, Placement]:
    """Gives every variable its exact spec.

    Args:
      config: rules in order; the first whose pattern matches the whole path wins.
      variables: canonical path to shape.
      axes: mesh axis to size.

    Returns:
      Canonical path to placement; a variable that no rule matches is replicated.

    Raises:
      ConfigError: a spec of another rank, a dim that the axis does not divide, or a rule that catches nothing.
    """
    placed = {path: _place(config, path, shape, axes) for path, shape in variables.items()}
    caught = {placement.rule for placement in placed.values()}
    for index, rule in enumerate(config.rules):
        if index not in caught:
            earlier = any(re.fullmatch(rule.match, path) for path in variables)
            why = "earlier rules catch all that it matches" if earlier else f"variables are {', '.join(variables)}"
            raise refuse(
                f"layout.rules[{index}].match",
                rule.match,
                allowed=f"it catches no variable ({why})",
                mend="mend or drop it",
            )
    return placed


def _place(config: LayoutConfig, path: str, shape: tuple[int, ...], axes: Mapping[str, int]) -> Placement:
    for index, rule in enumerate(config.rules):
        if not re.fullmatch(rule.match, path):
            continue
        if len(rule.spec) != len(shape):
            raise ConfigError(
                f"layout.rules[{index}].spec has {len(rule.spec)} entries and is refused: {path} has shape "
                f"{list(shape)}, rank {len(shape)}; give one entry a dim"
            )
        for dim, axis in zip(shape, rule.spec, strict=True):
            if axis is not None and dim % axes[axis]:
                raise ConfigError(
                    f"layout.rules[{index}].spec is refused: axis {axis!r} of size {axes[axis]} does not divide a dim "
                    f"of {dim} of {path}, shape {list(shape)}; put null there or change the size"
                )
        return Placement(path, shape, tuple(rule.spec), index)
    return Placement(path, shape, (None,) * len(shape), None)

"""What of a layout can be refused from the config and the mesh alone, and from the images' shape."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from typing import Any

from runner.config.errors import ConfigError, refuse
from runner.config.schema import LayoutConfig, RuleConfig
from runner.host import paths
from runner.layout.rules import Shape, mend_divisibility, show

_INPUT_RANKS = {"image": 4, "label": 1}
_IMAGE_DIMS = ("batch", "height", "width", "channel")


def check(config: LayoutConfig, axes: Mapping[str, int]) -> None:
    """Checks rules and inputs against the mesh, before any variable is known.

    Raises:
      ConfigError: a rule without exactly one of spec and shard, an axis that the mesh lacks or that one spec names
        twice, a pattern that does not compile, a rule that an earlier one leaves nothing, or inputs of another rank.
    """
    for index, rule in enumerate(config.rules):
        key = f"layout.rules[{index}]"
        _check_match(key, rule)
        _check_split(key, rule, axes)
        _check_reached(key, rule, config.rules[:index])
    _check_inputs_form(config, axes)


def check_inputs(config: LayoutConfig, image_shape_bhwc: tuple[int, int, int, int], axes: Mapping[str, int]) -> None:
    """Checks that the images can be split as `inputs.image` says.

    Args:
      config: checked.
      image_shape_bhwc: (batch, height, width, channel) of a micro-batch.
      axes: mesh axis to size.

    Raises:
      ConfigError: a dim that its axis does not divide.
    """
    spec = config.inputs["image"]
    for index, (dim, axis) in enumerate(zip(image_shape_bhwc, spec, strict=True)):
        if axis is not None and dim % axes[axis]:
            raise refuse(
                "layout.inputs.image",
                show(spec),
                allowed=f"axis {axis!r} of size {axes[axis]} does not divide dim {index}, the {_IMAGE_DIMS[index]} "
                f"({dim}), of images {list(image_shape_bhwc)}",
                mend=_mend_image(index, image_shape_bhwc, spec, axes),
            )


def _mend_image(index: int, shape: Shape, spec: Sequence[str | None], axes: Mapping[str, int]) -> str:
    axis = spec[index]
    assert axis is not None
    ways = mend_divisibility(index, shape, spec, axes)
    if index not in (1, 2):
        return ways
    size = [-(-shape[i] // axes[split]) * axes[split] if (split := spec[i]) else shape[i] for i in (1, 2)]
    return f"{ways}, or set dataset.image_size=[{size[0]},{size[1]}]"


def _check_match(key: str, rule: RuleConfig) -> None:
    if not rule.match:
        raise refuse(f"{key}.match", "''", allowed="a regular expression", mend="write match: 'd1/kernel'")
    try:
        re.compile(rule.match)
    except re.error as error:
        raise refuse(
            f"{key}.match", rule.match, allowed=f"a regular expression ({error})", mend="escape what is literal"
        ) from error


def _check_split(key: str, rule: RuleConfig, axes: Mapping[str, int]) -> None:
    if rule.spec is not None and rule.shard is not None:
        raise refuse(
            f"{key}.shard",
            rule.shard,
            allowed=f"exactly one of spec and shard, and spec is {show(rule.spec)}",
            mend="drop one of the two",
        )
    if rule.min_elements < 0 or (rule.min_elements and rule.shard is None):
        allowed = "0 or more" if rule.min_elements < 0 else "only a rule with shard has it"
        raise refuse(f"{key}.min_elements", rule.min_elements, allowed=allowed, mend="leave min_elements out")
    if rule.spec is not None:
        _check_spec(f"{key}.spec", rule.spec, axes)
    elif rule.shard is not None:
        _check_axis(f"{key}.shard", rule.shard, rule.shard, axes)
    else:
        raise refuse(
            f"{key}.spec",
            None,
            allowed=f"exactly one of spec and shard, and {rule.match!r} has neither",
            mend=f"write spec: [null,{list(axes)[-1]}], one entry a dim, or shard: {list(axes)[-1]}",
        )


def _check_reached(key: str, rule: RuleConfig, earlier: Sequence[RuleConfig]) -> None:
    """Refuses a rule to which nothing can come, whatever the variables are."""
    for index, before in enumerate(earlier):
        keeps = before.shard is not None or not before.optional or before.spec == rule.spec
        if before.match == rule.match and keeps:
            what = "has the same match"
        elif before.match in (".*", ".+") and (before.shard is not None or not before.optional):
            what = f"catches every variable ({before.match})"
        else:
            continue
        raise refuse(
            f"{key}.match",
            rule.match,
            allowed=f"layout.rules[{index}] before it {what} and shadows it completely",
            mend="drop it or move it up",
        )


def _check_inputs_form(config: LayoutConfig, axes: Mapping[str, int]) -> None:
    for name in config.inputs:
        if name not in _INPUT_RANKS:
            raise refuse(f"layout.inputs.{name}", config.inputs[name], allowed="image and label", mend="rename it")
    for name, rank in _INPUT_RANKS.items():
        spec = config.inputs.get(name)
        if spec is None or len(spec) != rank:
            raise refuse(
                f"layout.inputs.{name}",
                None if spec is None else show(spec),
                allowed=f"{rank} entries, each an axis or null",
                mend="see layout=replicated",
            )
        _check_spec(f"layout.inputs.{name}", spec, axes)
    if config.inputs["image"][0] != config.inputs["label"][0]:
        raise refuse(
            "layout.inputs.label",
            show(config.inputs["label"]),
            allowed=f"split like the images' first dim, {config.inputs['image'][0] or 'null'}",
            mend=f"make the two equal, as layout.inputs.label={show(config.inputs['image'][:1])}",
        )


def _check_spec(key: str, spec: Sequence[str | None], axes: Mapping[str, int]) -> None:
    for axis in spec:
        if axis is None:
            continue
        _check_axis(key, show(spec), axis, axes)
        if list(spec).count(axis) > 1:
            raise refuse(key, show(spec), allowed="an axis may split one dim only", mend=f"replace one {axis} by null")


def _check_axis(key: str, shown: str, axis: str, axes: Mapping[str, int]) -> None:
    if axis not in axes:
        raise _no_axis(key, shown, axis, axes)


def _no_axis(key: str, shown: str, axis: str, axes: Mapping[str, int]) -> ConfigError:
    options = meshes_with(axis)
    close = get_close_matches(axis, axes, n=1)
    if options:
        mend = f"choose a mesh that has it, as mesh={', mesh='.join(options)}"
    elif close:
        mend = f"did you mean {close[0]}?"
    else:
        mend = f"add mesh.axes.{axis}=2 or name one of those"
    names = f"its axes are {', '.join(axes)}" if len(axes) > 1 else f"its axis is {next(iter(axes))}"
    return refuse(key, shown, allowed=f"mesh.axes has no axis {axis!r}, {names}", mend=mend)


def meshes_with(axis: str) -> list[str]:
    """Returns the mesh options that have an axis of more than one device."""
    import yaml  # type: ignore[import-untyped] # only a refusal needs it

    found = []
    for path in sorted((paths.conf_dir() / "mesh").glob("*.yaml")):
        content: Any = yaml.safe_load(path.read_text())
        size = (content.get("axes") or {}).get(axis, 1)
        if isinstance(size, int) and size != 1:
            found.append(path.stem)
    return found

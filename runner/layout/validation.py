"""Checks of a layout against the mesh, from the config alone, and against the specs of the dataset's arrays."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING

from runner.config import search_path
from runner.config.schema import LayoutConfig, RuleConfig
from runner.errors import ConfigError, did_you_mean, invalid, listed
from runner.layout.axes import BATCH, SEQUENCE, batch_axis, names_of
from runner.layout.rules import divisibility_fix, show
from runner.layout.transformers import EXPERTS

if TYPE_CHECKING:
    # Importing NumPy takes a third of the time of a config error.
    from runner.data.base import ArraySpec

# The keys of which a rule has exactly one.
_KINDS = ("spec", "shard", "transformer")


def check(config: LayoutConfig, axes: Mapping[str, int]) -> None:
    """Checks rules and inputs, whose single values are checked, against the mesh, before any variable is known.

    Raises:
      ConfigError: a rule without exactly one of spec, shard and transformer, an axis that the mesh lacks or that one
        spec uses twice, tokens sharded over an axis that shards something else, or inputs with different first axes.
    """
    for index, rule in enumerate(config.rules):
        _check_kind(f"layout.rules[{index}]", rule, axes)
    _check_input_axes(config, axes)
    if config.sequence is not None:
        _check_sequence(config, config.sequence, axes)
    if config.from_model and config.auto:
        problem = "layout.auto is true too, and both place the variables that no rule matches"
        raise invalid("layout.from_model", True, problem=problem, fix="set layout.auto=false")
    # KerasHub's layout maps call their tensor-parallel axis `model`.
    if config.from_model and "model" not in axes:
        raise _no_axis("layout.from_model", "true", "model", axes)


def check_inputs(config: LayoutConfig, arrays: Mapping[str, ArraySpec], batch: int, axes: Mapping[str, int]) -> None:
    """Checks that the arrays of a microbatch of `batch` examples can be sharded as the layout says.

    Raises:
      ConfigError: an unknown array, a spec of a wrong rank, a dim that its axis does not divide, or tokens sharded
        over the axis of a rule that shards heads.
    """
    if config.sequence is not None:
        _check_lengths(config.sequence, config.inputs, arrays, axes)
    for name, spec in config.inputs.items():
        key = f"layout.inputs.{name}"
        if name in arrays:
            _check_fits(key, spec, batch, arrays[name], axes)
            # An array may have no names of dims, so the two may differ in length.
            for dim, axis in zip(arrays[name].dims, spec[1:], strict=False):
                if dim == SEQUENCE and axis is not None:
                    _check_heads(key, show(spec), axis, config.rules)
        else:
            problem = f"the dataset has no array {name!r} (its arrays: {', '.join(arrays)})"
            raise invalid(key, spec, problem=problem, fix=did_you_mean(name, list(arrays), f"remove {key}"))


def _check_sequence(config: LayoutConfig, axis: str, axes: Mapping[str, int]) -> None:
    """Checks that the axis for context parallelism exists and shards nothing else."""
    key = "layout.sequence"
    if axis not in axes:
        raise _no_axis(key, axis, axis, axes)
    if axis in names_of(batch_axis(config, axes)):
        fix = "name another axis, of a mesh such as mesh=batch4_sequence2"
        raise invalid(key, axis, problem="this axis already shards the batch dim", fix=fix)
    _check_heads(key, axis, axis, config.rules)


def _check_heads(key: str, value: str, axis: str, rules: Sequence[RuleConfig]) -> None:
    """Rejects tokens on the axis of a rule that shards heads: DTensor may compute wrong numbers without an error."""
    for index, rule in enumerate(rules):
        if rule.transformer == axis:
            problem = (
                f"axis {axis!r} already shards heads by layout.rules[{index}].transformer, and can't shard tokens too"
            )
            fix = "choose a mesh with an axis for each, such as 'mesh.axes={batch:2,sequence:2,model:2}'"
            raise invalid(key, value, problem=problem, fix=fix)


def _check_lengths(
    axis: str, inputs: Collection[str], arrays: Mapping[str, ArraySpec], axes: Mapping[str, int]
) -> None:
    """Checks that there are sequences, and that the axis divides the length of those that `inputs` does not name."""
    key = "layout.sequence"
    if not any(SEQUENCE in spec.dims for spec in arrays.values()):
        problem = f"needs an array with a dim named sequence, as none of {', '.join(arrays)} has"
        raise invalid(key, axis, problem=problem, fix=f"remove {key}")
    size = axes[axis]
    for name, spec in arrays.items():
        if name in inputs or SEQUENCE not in spec.dims:
            continue
        length = spec.shape[spec.dims.index(SEQUENCE)]
        if length % size:
            problem = f"axis {axis!r} of size {size} does not divide the {length} tokens of {name}"
            raise invalid(key, axis, problem=problem, fix=f"set dataset.sequence_length to a multiple of {size}")


def _check_fits(key: str, spec: Sequence[str | None], batch: int, array: ArraySpec, axes: Mapping[str, int]) -> None:
    shape = (batch, *array.shape)
    # Dims without names are shown by their sizes.
    names = ("batch", *(array.dims or [""] * len(array.shape)))
    if len(spec) != len(shape):
        dims = ", ".join(name or str(size) for name, size in zip(names, shape, strict=True))
        example = show((*spec[:1], *["null"] * len(array.shape)))
        problem = f"must have {len(shape)} entries, one per dim of [{dims}]"
        raise invalid(key, spec, problem=problem, fix=f"set {key}={example}")
    for index, (size, axis) in enumerate(zip(shape, spec, strict=True)):
        if axis is None or size % axes[axis] == 0:
            continue
        dim = f"dim {index} ({size})"
        if names[index]:
            dim = f"dim {index}, the {names[index]} ({size}),"
        fix = divisibility_fix(index, shape, spec, axes)
        if names[index] in ("height", "width"):
            fix += ", or set dataset.image_size"
        problem = f"axis {axis!r} of size {axes[axis]} does not divide {dim} of {list(shape)}"
        raise invalid(key, spec, problem=problem, fix=fix)


def _check_kind(key: str, rule: RuleConfig, axes: Mapping[str, int]) -> None:
    """Checks that a rule is of exactly one kind (spec, shard or transformer), and has no keys of another one."""
    used = [name for name in _KINDS if getattr(rule, name) is not None]
    if len(used) != 1:
        axis = list(axes)[-1]
        problem = f"a rule has exactly one of {', '.join(_KINDS)}, but this one has {' and '.join(used) or 'none'}"
        fix = f"write spec: [null,{axis}] with one entry per dim, or shard: {axis}"
        raise invalid(f"{key}.spec", rule.spec, problem=problem, fix=fix)
    if rule.store is not None and (rule.transformer is None or rule.store in (rule.transformer, EXPERTS)):
        problem = "works with transformer only, and on another axis than that and experts"
        raise invalid(f"{key}.store", rule.store, problem=problem, fix="remove store")
    if rule.min_elements and rule.shard is None:
        problem = "works with shard only"
        raise invalid(f"{key}.min_elements", rule.min_elements, problem=problem, fix="remove min_elements")
    if rule.spec is not None:
        _check_spec(f"{key}.spec", rule.spec, axes)
        return
    for name in ("transformer", "store", "shard"):
        axis_or_none = getattr(rule, name)
        if axis_or_none is not None and axis_or_none not in axes:
            raise _no_axis(f"{key}.{name}", axis_or_none, axis_or_none, axes)


def _check_input_axes(config: LayoutConfig, axes: Mapping[str, int]) -> None:
    """Checks the specs of `inputs` against the mesh, and that all of them shard the batch dim alike."""
    is_one_device = math.prod(axes.values()) == 1
    if not config.inputs and BATCH not in axes and not is_one_device:
        # An axis `batch` of one device would be accepted, but then every device would compute the same.
        raise invalid(
            "mesh.axes",
            axes,
            problem=f"has no axis {BATCH!r}, so every device would compute the same examples",
            fix=f"choose a mesh that has it, such as {listed(_meshes_with(BATCH))}, or set "
            "layout.inputs, whose first entries name the axis of the batch dim",
        )
    first: str | None = None
    for name, spec in config.inputs.items():
        key = f"layout.inputs.{name}"
        if not spec:
            problem = "needs one entry per dim, each an axis or null"
            axis = BATCH if BATCH in axes else next(iter(axes))
            raise invalid(key, spec, problem=problem, fix=f"set {key}=[{axis}]")
        _check_spec(key, spec, axes)
        if first is None:
            first = name
        elif spec[0] != config.inputs[first][0]:
            expected = config.inputs[first][0]
            problem = f"the first entry must equal that of {first}, {expected or 'null'}"
            raise invalid(key, spec, problem=problem, fix=f"set {key}={show((expected, *spec[1:]))}")


def _check_spec(key: str, spec: Sequence[str | None], axes: Mapping[str, int]) -> None:
    """Checks that the mesh has the axes of a spec, and that each shards one dim only."""
    for axis in spec:
        if axis is None:
            continue
        if axis not in axes:
            raise _no_axis(key, show(spec), axis, axes)
        if list(spec).count(axis) > 1:
            problem = f"an axis can shard one dim only, but {axis!r} is used twice"
            raise invalid(key, spec, problem=problem, fix=f"replace one {axis} by null")


def _no_axis(key: str, value: str, axis: str, axes: Mapping[str, int]) -> ConfigError:
    options = _meshes_with(axis)
    fix = did_you_mean(axis, axes, f"set mesh.axes.{axis}=2, or name one of those")
    if options:
        fix = f"choose a mesh that has it, such as {listed(options)}, or add +mesh.axes.{axis}=1"
    noun = "its axis"
    if len(axes) > 1:
        noun = "its axes"
    names = f"{noun}: {', '.join(axes)}"
    return invalid(key, value, problem=f"the mesh has no axis {axis!r} ({names})", fix=fix)


def _meshes_with(axis: str) -> list[str]:
    """Returns the mesh options with an axis of more than one device, as on a command line."""
    options = []
    for name in search_path.options("mesh"):
        axes = search_path.readable_content_of(f"mesh/{name}").get("axes")
        # A user's file may have anything here.
        if not isinstance(axes, dict):
            continue
        size = axes.get(axis, 1)
        if isinstance(size, int) and size != 1:
            options.append(f"mesh={name}")
    return options

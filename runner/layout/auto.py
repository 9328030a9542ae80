"""Places every variable that no rule of the config matches, by these principles.

Model axes are those of more than one device that shard no dim of a batch. A variable is sharded over the largest of
them that divides its dim. With a model axis:
- Recognized parts of a transformer are sharded as `runner.layout.transformers` says: attention by heads, feed-forwards
  by hidden units, embeddings and heads by vocabulary, a mixture's experts over `experts`.
- Two dense layers, the second right after the first, are sharded column then row: the activation between them stays
  sharded, and one all-reduce follows (also Megatron-LM). The pairs with the most elements come first.
- A single dense layer that has an eighth of all elements or more is sharded by rows. A smaller one is replicated: its
  sharding would propagate to all layers around it, and each of them would communicate.
- A convolution's kernel is sharded over its output channels and gathered before use.
- The bias of a layer sharded by columns is sharded like its kernel; all other variables are replicated.
Without a model axis, variables are sharded over the batch axis (FSDP), each on the largest dim that it divides.
Variables of fewer than 1,024 elements are replicated, except those that belong to a sharded kernel.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from runner.config.schema import LayoutConfig
from runner.layout import transformers
from runner.layout.axes import Shape, Spec, axis_size, inner_batch_axis, replicated, shard_spec
from runner.layout.rules import Placement, model_axes
from runner.layout.transformers import EXPERTS

# Share of all elements from which on a single dense layer is sharded: below, the memory that it saves does not pay for
# the communication of the layers around it.
WORTH = 1 / 8
# Elements below which a variable is replicated: sharding it saves less than 4 KiB and costs a collective.
SMALL = 1024


def propose(
    placed: Mapping[str, Placement], config: LayoutConfig, axes: Mapping[str, int], structure: transformers.Structure
) -> dict[str, Placement]:
    """Returns placements of the variables that no rule of the checked config has placed, each with its reason.

    `placed` are all variables in the model's order, which tells which layer follows which. The new placements are
    numbered after the config's rules.
    """
    # A dict keeps the order and looks up a path in constant time.
    free = {path: None for path, placement in placed.items() if placement.rule is None}
    free_axes = model_axes(config, axes)
    # The axis of experts shards nothing else.
    axes_of_units = dict(free_axes)
    axes_of_units.pop(EXPERTS, None)
    plan = _Plan({path: placement.shape for path, placement in placed.items()}, free, axes_of_units)
    # The first principle that decides a variable wins, so these go from the specific to the general.
    if free_axes:
        _shard_transformers(plan, structure, axes)
    if plan.model_axes:
        _shard_dense_pairs(plan)
        _shard_single_dense(plan)
        _shard_convolutions(plan)
    if free_axes:
        _replicate_rest(plan)
    else:
        _shard_over_batch(plan, config, axes, structure)
    proposed = {}
    for number, path in enumerate(free, len(config.rules)):
        proposed[path] = replace(placed[path], spec=plan.specs[path], rule=number, reason=plan.reasons[path])
    return proposed


@dataclass
class _Plan:
    """Decisions so far.

    `free` are the variables to decide, in order; `model_axes` leave out that of experts; `layers` are shapes by layer
    and name of a variable, in order; `specs` and `reasons` are by path.
    """

    variables: Mapping[str, Shape]
    free: Mapping[str, None]
    model_axes: Mapping[str, int]
    layers: dict[str, dict[str, Shape]] = field(default_factory=dict)
    specs: dict[str, Spec] = field(default_factory=dict)
    reasons: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for path, shape in self.variables.items():
            layer, _, name = path.rpartition("/")
            self.layers.setdefault(layer, {})[name] = shape

    def is_open(self, path: str) -> bool:
        """Returns whether a variable exists, is free and is not decided yet."""
        return path in self.free and path not in self.specs

    def is_fixed(self, path: str) -> bool:
        """Returns whether a rule of the config places a variable; one that does not exist is not fixed."""
        return path in self.variables and path not in self.free

    def decide(self, path: str, spec: Spec, reason: str) -> None:
        """Decides a variable, unless a rule or an earlier principle has."""
        if self.is_open(path):
            self.specs[path] = spec
            self.reasons[path] = reason

    def axis_dividing(self, size: int) -> str | None:
        """Returns the largest model axis that divides the size of a dim."""
        dividing = [axis for axis, axis_size in self.model_axes.items() if size % axis_size == 0]
        return max(dividing, key=self.model_axes.__getitem__, default=None)

    def described_axes(self) -> str:
        """Returns the model axes and their sizes for a reason."""
        return " or ".join(f"{axis} of size {size}" for axis, size in self.model_axes.items())

    def dense_layers(self) -> list[str]:
        """Returns, in order, the layers of a kernel of two dims, perhaps a bias, and nothing else."""
        found = []
        for layer, shapes in self.layers.items():
            if len(shapes.get("kernel", ())) == 2 and shapes.keys() <= {"kernel", "bias"}:
                found.append(layer)
        return found

    def kernel_elements(self, layer: str) -> int:
        return math.prod(self.layers[layer]["kernel"])


def _shard_transformers(plan: _Plan, structure: transformers.Structure, axes: Mapping[str, int]) -> None:
    for path, role in structure.roles.items():
        if not plan.is_open(path):
            continue
        if not plan.model_axes:
            # Only the axis of experts is free.
            axis: str | None = EXPERTS
        else:
            axis = plan.axis_dividing(role.units)
        # If no axis divides the units, any of them gives the spec without one.
        spec, reason = transformers.place(role, plan.variables[path], axis or next(iter(plan.model_axes)), axes)
        if axis is None and not any(spec) and not role.why_replicated:
            reason = f"no axis ({plan.described_axes()}) divides its {role.count}"
        # Without a reason the role does not concern the free axes.
        if reason:
            plan.decide(path, spec, reason)


def _shard_dense_pairs(plan: _Plan) -> None:
    """Decides consecutive dense layers: the first by columns, the second by rows."""
    dense = set(plan.dense_layers())
    # (elements of both kernels, first layer, second layer)
    pairs: list[tuple[int, str, str]] = []
    for first, second in itertools.pairwise(plan.layers):
        if {first, second} <= dense and plan.layers[first]["kernel"][1] == plan.layers[second]["kernel"][0]:
            pairs.append((plan.kernel_elements(first) + plan.kernel_elements(second), first, second))
    # The sort is stable: of equal pairs the first in the model's order comes first.
    for elements, first, second in sorted(pairs, key=lambda pair: -pair[0]):
        column_kernel = f"{first}/kernel"
        row_kernel = f"{second}/kernel"
        axis = plan.axis_dividing(plan.layers[first]["kernel"][1])
        if axis is None or elements < SMALL:
            continue
        if plan.is_fixed(f"{first}/bias") or not (plan.is_open(column_kernel) and plan.is_open(row_kernel)):
            continue
        plan.decide(
            column_kernel,
            (None, axis),
            f"column, then {row_kernel} by row: the activation between stays sharded over {axis}",
        )
        plan.decide(f"{first}/bias", (axis,), f"sharded like the columns of {column_kernel}")
        plan.decide(
            row_kernel,
            (axis, None),
            f"row, after {column_kernel} by column: one all-reduce over {axis} gives its output",
        )
        plan.decide(f"{second}/bias", (None,), f"added after the all-reduce of {row_kernel}")


def _shard_single_dense(plan: _Plan) -> None:
    """Decides dense layers that are in no pair."""
    dense = plan.dense_layers()
    all_elements = sum(map(math.prod, plan.variables.values()))
    for layer in sorted(dense, key=lambda layer: -plan.kernel_elements(layer)):
        kernel = f"{layer}/kernel"
        bias = f"{layer}/bias"
        elements = plan.kernel_elements(layer)
        if not plan.is_open(kernel) or elements < SMALL:
            continue
        if elements < WORTH * all_elements:
            share = f"{elements / all_elements:.1%} of all elements"
            plan.decide(kernel, (None, None), f"alone with {share}: saves less memory than its sharding communicates")
            continue
        rows = plan.variables[kernel][0]
        axis = plan.axis_dividing(rows)
        if axis is None:
            plan.decide(kernel, (None, None), f"alone, and no axis ({plan.described_axes()}) divides its {rows} rows")
            continue
        plan.decide(kernel, (axis, None), f"alone, by row: one all-reduce over {axis} gives its output")
        plan.decide(bias, (None,), f"added after the all-reduce of {kernel}")


def _shard_convolutions(plan: _Plan) -> None:
    for layer, shapes in plan.layers.items():
        shape = shapes.get("kernel", ())
        if len(shape) != 4 or math.prod(shape) < SMALL:
            continue
        channels = shape[-1]
        axis = plan.axis_dividing(channels)
        if axis is not None:
            reason = f"convolution: {channels} output channels, gathered before use"
            plan.decide(f"{layer}/kernel", (None, None, None, axis), reason)


def _replicate_rest(plan: _Plan) -> None:
    """Replicates all variables that are not decided yet, each with its reason."""
    for path in plan.free:
        shape = plan.variables[path]
        layer, _, name = path.rpartition("/")
        shardable = shape
        if name == "kernel":
            shardable = shape[-1:]
        reason = f"no principle fits a variable of shape {list(shape)} in {layer or 'the model'}"
        if math.prod(shape) < SMALL:
            reason = f"small, {_count(shape)}"
        elif name == "bias":
            reason = "the bias of a layer whose output is replicated"
        elif name != "kernel" and len(shape) < 2:
            reason = "no kernel: each device needs all of it"
        elif plan.model_axes and not any(map(plan.axis_dividing, shardable)):
            reason = f"no axis ({plan.described_axes()}) divides the dims of {list(shape)} that it may shard"
        plan.decide(path, replicated(shape), reason)


def _shard_over_batch(
    plan: _Plan, config: LayoutConfig, axes: Mapping[str, int], structure: transformers.Structure
) -> None:
    """Decides all variables without a model axis: FSDP over the batch axis."""
    axis = inner_batch_axis(config, axes)
    for path in plan.free:
        shape = plan.variables[path]
        size = axis_size(axes, axis)
        if axis is None or size == 1:
            plan.decide(path, replicated(shape), "no axis of more than one device is left to shard weights over")
            continue
        spec = shard_spec(shape, axis, size, SMALL, structure.first_dim(path))
        if axis in spec:
            dim = spec.index(axis)
            reason = f"{_count(shape)}: dim {dim} ({shape[dim]}) is the largest that {axis} divides (FSDP)"
        elif math.prod(shape) < SMALL:
            reason = f"small, {_count(shape)}"
        else:
            reason = f"{axis} of size {size} divides no dim of {list(shape)}"
        plan.decide(path, spec, reason)


def _count(shape: Shape) -> str:
    elements = math.prod(shape)
    if elements == 1:
        return "1 element"
    return f"{elements:,} elements"

"""Proposes a rule for every variable that no rule of the config matches, by these principles.

Model axes are those of more than one device that shard no dim of a batch. A variable is sharded over the largest of
them that divides its dim. With a model axis:
- Recognized parts of a transformer are sharded as `runner.layout.transformers` says: attention by heads, feed-forwards
  by hidden units, embeddings and heads by vocabulary, a mixture's experts over `experts`.
- In attention with other names, the kernels (dim, heads, head_width) and (heads, head_width, dim) and the biases
  (heads, head_width) are sharded by heads, so that one device has whole heads (Megatron-LM, arXiv:1909.08053).
- Two dense layers, the second right after the first, are sharded column then row: the activation between them stays
  sharded, and one all-reduce follows (also Megatron-LM). The pairs with the most elements come first.
- A single dense layer that has an eighth of all elements or more is sharded by rows, else by columns; the last one,
  whose columns are the outputs, never by columns. A smaller one is replicated: its sharding would propagate to all
  layers around it, and each of them would communicate.
- A convolution's kernel is sharded over its output channels and gathered before use.
- The bias of a layer sharded by columns is sharded like its kernel; all other variables are replicated.
Without a model axis, variables are sharded over the batch axis (FSDP), each on the largest dim that it divides.
Variables of fewer than 1,024 elements are replicated, except those that belong to a sharded kernel.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import yaml  # type: ignore[import-untyped]

from runner.config.schema import LayoutConfig, RuleConfig
from runner.layout import transformers
from runner.layout.axes import inner_batch_axis
from runner.layout.rules import RuleTable, first_match, model_axes
from runner.layout.specs import Shape, Spec, axis_size, replicated, shard_spec, spec_of_dim
from runner.layout.transformers import EXPERTS

# Share of all elements from which on a single dense layer is sharded: below, the memory that it saves does not pay for
# the communication of the layers around it.
WORTH = 1 / 8
# Elements below which a variable is replicated: sharding it saves less than 4 KiB and costs a collective.
SMALL = 1024


@dataclass(frozen=True)
class Proposal:
    """A rule that matches exactly one variable, and its reason in one line."""

    path: str
    rule: RuleConfig
    reason: str


def propose(variables: Mapping[str, Shape], config: LayoutConfig, axes: Mapping[str, int]) -> list[Proposal]:
    """Proposes a rule for every variable that no rule of the checked config matches; each fits its variable.

    `variables` are in the model's order, which tells which layer follows which.
    """
    structure = transformers.read(variables)
    table = RuleTable(config.rules)
    # A dict keeps the order and looks up a path in constant time.
    free: dict[str, None] = {}
    for path, shape in variables.items():
        if first_match(table, path, shape, axes, structure).placement.rule is None:
            free[path] = None
    free_axes = model_axes(config, axes)
    # The axis of experts shards nothing else.
    axes_of_units = dict(free_axes)
    axes_of_units.pop(EXPERTS, None)
    plan = _Plan(variables, free, axes_of_units)
    # The first principle that decides a variable wins, so these go from the specific to the general.
    if free_axes:
        _shard_transformers(plan, structure, axes)
    if plan.model_axes:
        _shard_attention(plan)
        _shard_dense_pairs(plan)
        _shard_single_dense(plan)
        _shard_convolutions(plan)
    if free_axes:
        _replicate_rest(plan)
    else:
        _shard_over_batch(plan, config, axes, structure)
    proposals = []
    for path in free:
        rule = RuleConfig(match=re.escape(path), spec=list(plan.specs[path]))
        proposals.append(Proposal(path, rule, plan.reasons[path]))
    return proposals


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
        return [layer for layer, shapes in self.layers.items() if _has_only_kernel_and_bias(shapes, rank=2)]

    def kernel_elements(self, layer: str) -> int:
        """Returns the number of elements of a layer's kernel."""
        return math.prod(self.layers[layer]["kernel"])


def _has_only_kernel_and_bias(shapes: Mapping[str, Shape], rank: int) -> bool:
    """Returns whether a layer has a kernel of this rank and at most a bias."""
    return len(shapes.get("kernel", ())) == rank and shapes.keys() <= {"kernel", "bias"}


def _shard_transformers(plan: _Plan, structure: transformers.Structure, axes: Mapping[str, int]) -> None:
    """Decides the variables of recognized parts of a transformer."""
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


def _shard_attention(plan: _Plan) -> None:
    """Decides kernels of three dims with the shapes of attention, whatever their names."""
    by_parent: dict[str, list[str]] = {}
    for layer, shapes in plan.layers.items():
        if _has_only_kernel_and_bias(shapes, rank=3):
            by_parent.setdefault(layer.rpartition("/")[0], []).append(layer)
    for parent, layers in by_parent.items():
        output = _output_projection(plan, layers)
        if output is None:
            continue
        heads = plan.layers[output]["kernel"][0]
        axis = plan.axis_dividing(heads)
        inputs = [layer for layer in layers if layer != output and plan.layers[layer]["kernel"][1] == heads]
        for layer in [*inputs, output]:
            kernel = f"{layer}/kernel"
            if axis is None:
                reason = f"no axis ({plan.described_axes()}) divides its {heads} heads"
                plan.decide(kernel, replicated(plan.variables[kernel]), reason)
                continue
            heads_dim = 1
            if layer == output:
                heads_dim = 0
            reason = f"{heads} heads of {parent or 'the attention'}, {axis} divides them"
            plan.decide(kernel, spec_of_dim(3, heads_dim, axis), reason)
            bias = f"{layer}/bias"
            if layer != output and bias in plan.variables:
                plan.decide(bias, spec_of_dim(2, 0, axis), f"{heads} heads, sharded like {kernel}")


def _output_projection(plan: _Plan, layers: Sequence[str]) -> str | None:
    """Returns the layer whose kernel (heads, head_width, dim) another one's (dim, heads, head_width) leads to.

    If several fit, the last: the output is computed after the projections to heads.
    """
    inputs_by_heads: dict[Shape, list[str]] = {}
    for layer in layers:
        shapes = plan.layers[layer]
        has_bias_of_heads = len(shapes.get("bias", (1, 1))) == 2
        if has_bias_of_heads:
            inputs_by_heads.setdefault(shapes["kernel"][1:], []).append(layer)
    for output in reversed(layers):
        shapes = plan.layers[output]
        if len(shapes.get("bias", (1,))) != 1:
            continue
        heads_and_width = shapes["kernel"][:2]
        if any(layer != output for layer in inputs_by_heads.get(heads_and_width, ())):
            return output
    return None


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
        rows, columns = plan.variables[kernel]
        row_axis = plan.axis_dividing(rows)
        column_axis = plan.axis_dividing(columns)
        is_last = layer == dense[-1]
        if row_axis is not None:
            plan.decide(kernel, (row_axis, None), f"alone, by row: one all-reduce over {row_axis} gives its output")
            plan.decide(bias, (None,), f"added after the all-reduce of {kernel}")
        elif column_axis is not None and is_last:
            plan.decide(kernel, (None, None), "its columns are the outputs, and no axis divides its rows")
        elif column_axis is not None and not plan.is_fixed(bias):
            reason = f"alone, by column: {column_axis} does not divide its {rows} rows"
            plan.decide(kernel, (None, column_axis), reason)
            plan.decide(bias, (column_axis,), f"sharded like the columns of {kernel}")


def _shard_convolutions(plan: _Plan) -> None:
    """Decides kernels of convolutions over images."""
    for layer, shapes in plan.layers.items():
        shape = shapes.get("kernel", ())
        if len(shape) != 4 or math.prod(shape) < SMALL:
            continue
        channels = shape[-1]
        axis = plan.axis_dividing(channels)
        if axis is not None:
            reason = f"convolution: {channels} output channels, gathered before use"
            plan.decide(f"{layer}/kernel", spec_of_dim(4, 3, axis), reason)


def _replicate_rest(plan: _Plan) -> None:
    """Replicates all variables that are not decided yet, each with its reason."""
    for path in plan.free:
        shape = plan.variables[path]
        layer, _, name = path.rpartition("/")
        has_divisible_dim = any(map(plan.axis_dividing, shape))
        if math.prod(shape) < SMALL:
            reason = f"small, {_count(shape)}"
        elif name == "bias":
            reason = "the bias of a layer whose output is replicated"
        elif name != "kernel" and len(shape) < 2:
            reason = "no kernel: each device needs all of it"
        elif plan.model_axes and not has_divisible_dim:
            reason = f"no axis ({plan.described_axes()}) divides a dim of {list(shape)}"
        elif name == "kernel" and len(shape) == 4:
            reason = f"convolution, and no axis ({plan.described_axes()}) divides its {shape[-1]} output channels"
        else:
            noun = "variable"
            if name == "kernel":
                noun = "kernel"
            reason = f"no principle fits a {noun} of shape {list(shape)} in {layer or 'the model'}"
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
    """Returns the number of elements with its unit."""
    elements = math.prod(shape)
    if elements == 1:
        return "1 element"
    return f"{elements:,} elements"


def to_yaml(proposals: Iterable[Proposal], config: LayoutConfig) -> str:
    """Returns the config's rules and the proposals as the YAML of a layout option, each rule below its reason.

    `auto` is false in it, so the option no longer depends on the model.
    """
    lines = [
        "# Rules that layout=auto proposed for one model on one mesh.",
        "auto: false # proposes a rule for every variable that no rule matches",
    ]
    rules = []
    for rule in config.rules:
        rules += ["  # a rule of the config", f"  - {_flow(_rule_content(rule))}"]
    for proposal in proposals:
        rules += [f"  # {proposal.reason}", f"  - {_flow(_rule_content(proposal.rule))}"]
    # Without items below it, a key needs a value on its own line.
    rules_key = "rules: []"
    if rules:
        rules_key = "rules:"
    lines.append(f"{rules_key} # first re.fullmatch on layer/variable wins; no match: replicated")
    lines += rules
    inputs_key = "inputs: {}"
    if config.inputs:
        inputs_key = "inputs:"
    lines.append(f"{inputs_key} # array of a batch -> one entry per dim; others are sharded over their first dim")
    for name, spec in config.inputs.items():
        lines.append(f"  {name}: {_flow(list(spec))}")
    lines.append(f"sequence: {config.sequence or 'null'} # axis that shards tokens; null: none")
    lines.append("from_model: false # for unmatched variables, use the model's own get_layout_map")
    return "\n".join(lines) + "\n"


def _rule_content(rule: RuleConfig) -> dict[str, object]:
    """Returns the keys of a rule that have a value."""
    content: dict[str, object] = {"match": rule.match}
    for name in ("transformer", "store", "shard"):
        axis = getattr(rule, name)
        if axis is not None:
            content[name] = axis
    if rule.spec is not None:
        content["spec"] = list(rule.spec)
    if rule.min_elements:
        content["min_elements"] = rule.min_elements
    if rule.optional:
        content["optional"] = True
    return content


def _flow(content: object) -> str:
    """Returns YAML on one line."""
    text: str = yaml.safe_dump(content, default_flow_style=True, sort_keys=False, width=float("inf"))
    return text.strip()

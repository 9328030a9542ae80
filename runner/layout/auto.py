"""Proposes a rule for every variable that no rule of the config catches, by these principles.

Model axes are those of more than one device that split no dim of a batch; a variable takes the largest of them
that divides what is to be split. With a model axis:
- What is known of a transformer by paths and shapes is split as `runner.layout.transformers` says: attention on
  heads, feed-forwards on hidden units, embeddings and heads on the vocabulary, a mixture's experts over `experts`.
- Of attention by other names the kernels (dim, heads, head_dim) and (heads, head_dim, dim) are split on the heads,
  biases (heads, head_dim) alike, so one device holds whole heads (Megatron-LM, arXiv:1909.08053).
- Two dense layers, the second right after the first, are split column then row: the activation between them stays
  split, and one all-reduce follows (likewise Megatron-LM). Pairs with the most elements are chosen first.
- A dense layer alone that holds an eighth of all elements or more is split by rows, else by columns; the last, which
  gives the outputs, never by columns. A smaller one stays whole: its split would pass on to every layer around it,
  each of which would then communicate.
- A convolution's kernel is split on its last dim, its output channels, in store.
- Biases of column layers are split like their kernels; all else is whole.
Without a model axis, variables are split over the batch axis in store (FSDP), each on its largest dim that it divides.
Nothing of fewer than 1,024 elements is split, but what goes with a split kernel.
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
from runner.layout.axes import batch_axis
from runner.layout.rules import RuleTable, catch, model_axes
from runner.layout.specs import Shape, Spec, shard_spec, whole
from runner.layout.transformers import EXPERTS

WORTH = 1 / 8  # of all elements: a smaller dense layer alone is not worth what its split makes others communicate
SMALL = 1024  # elements; splitting fewer saves under 4 KiB and costs a collective


@dataclass(frozen=True)
class Proposal:
    """A rule for exactly one variable, and why.

    Attributes:
      path: the variable.
      rule: matches that path alone.
      reason: one line.
    """

    path: str
    rule: RuleConfig
    reason: str


def propose(variables: Mapping[str, Shape], config: LayoutConfig, axes: Mapping[str, int]) -> list[Proposal]:
    """Proposes a rule for every variable that no rule catches.

    Args:
      variables: canonical path to shape, in the model's order; which layer follows which is read from that.
      config: checked; its rules keep what they catch.
      axes: mesh axis to size.

    Returns:
      One proposal a variable, in the variables' order. Each fits its variable.
    """
    structure = transformers.read(variables)
    table = RuleTable(config.rules)
    caught = {path: catch(table, path, shape, axes, structure) for path, shape in variables.items()}
    # A dict for its order and for looking a path up.
    free = dict.fromkeys(path for path, each in caught.items() if each.placement.rule is None)
    others = model_axes(config, axes)
    plan = _Plan(variables, free, {axis: size for axis, size in others.items() if axis != EXPERTS})
    if others:
        _split_transformers(plan, structure, axes)
    if plan.model_axes:
        _split_attention(plan)
        _split_dense_pairs(plan)
        _split_lone_dense(plan)
        _split_convolutions(plan)
    if others:
        _leave_rest(plan)
    else:
        _split_over_batch(plan, config, axes, structure)
    return [
        Proposal(path, RuleConfig(match=re.escape(path), spec=list(plan.specs[path])), plan.reasons[path])
        for path in free
    ]


@dataclass
class _Plan:
    """What is decided so far.

    Attributes:
      variables: all of the model's, in order.
      free: paths of those to decide, in order.
      model_axes: axis to size.
      layers: layer to its variables' names to shapes, in order.
      specs: decided specs by path.
      reasons: their reasons.
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

    def open(self, path: str) -> bool:
        """Returns whether a variable is there to decide and not decided yet."""
        return path in self.free and path not in self.specs

    def fixed(self, path: str) -> bool:
        """Returns whether a rule of the config places a variable; one that the model lacks is not fixed."""
        return path in self.variables and path not in self.free

    def set(self, path: str, spec: Spec, reason: str) -> None:
        """Decides a variable, unless a rule or an earlier principle has."""
        if self.open(path):
            self.specs[path], self.reasons[path] = spec, reason

    def axis(self, *dims: int) -> str | None:
        """Returns the largest model axis that divides all of these dims."""
        fitting = [axis for axis, size in self.model_axes.items() if all(dim % size == 0 for dim in dims)]
        return max(fitting, key=lambda axis: self.model_axes[axis]) if fitting else None

    def sizes(self) -> str:
        """Returns the model axes in words."""
        return " or ".join(f"{axis} of size {size}" for axis, size in self.model_axes.items())

    def dense(self) -> list[str]:
        """Returns the dense layers in order: a kernel of two dims, a bias perhaps, nothing else."""
        return [
            layer
            for layer, names in self.layers.items()
            if len(names.get("kernel", ())) == 2 and set(names) <= {"kernel", "bias"}
        ]


def _split_transformers(plan: _Plan, structure: transformers.Structure, axes: Mapping[str, int]) -> None:
    for path, role in structure.roles.items():
        if not plan.open(path):
            continue
        axis = plan.axis(role.units) if plan.model_axes else EXPERTS
        spec, reason = transformers.place(role, plan.variables[path], axis or next(iter(plan.model_axes)), axes)
        if axis is None and not any(spec) and not role.whole:
            reason = f"no axis ({plan.sizes()}) divides its {role.count}"
        if reason:
            plan.set(path, spec, reason)


def _split_attention(plan: _Plan) -> None:
    groups: dict[str, list[str]] = {}
    for layer, names in plan.layers.items():
        if len(names.get("kernel", ())) == 3 and set(names) <= {"kernel", "bias"}:
            groups.setdefault(layer.rpartition("/")[0], []).append(layer)
    for group, layers in groups.items():
        output = _output_projection(plan, layers)
        if output is None:
            continue
        heads = plan.layers[output]["kernel"][0]
        inward = [layer for layer in layers if layer != output and plan.layers[layer]["kernel"][1] == heads]
        axis = plan.axis(heads)
        attention = group or "the attention"
        for layer in [*inward, output]:
            dim = 0 if layer == output else 1
            kernel = f"{layer}/kernel"
            bias = f"{layer}/bias"
            if axis is None:
                plan.set(kernel, whole(plan.variables[kernel]), f"no axis ({plan.sizes()}) divides its {heads} heads")
                continue
            plan.set(kernel, _at(3, dim, axis), f"{heads} heads of {attention}, {axis} divides them")
            if layer != output and bias in plan.variables:
                plan.set(bias, _at(2, 0, axis), f"{heads} heads, split like {kernel}")


def _output_projection(plan: _Plan, layers: Sequence[str]) -> str | None:
    """Finds the kernel (heads, head_dim, dim) to which the others' (dim, heads, head_dim) lead; the last such."""
    inward: dict[Shape, list[str]] = {}
    for layer in layers:
        names = plan.layers[layer]
        if len(names.get("bias", (1, 1))) == 2:
            inward.setdefault(names["kernel"][1:], []).append(layer)
    for output in reversed(layers):
        heads, head_dim, _ = plan.layers[output]["kernel"]
        if len(plan.layers[output].get("bias", (1,))) != 1:
            continue
        if any(layer != output for layer in inward.get((heads, head_dim), ())):
            return output
    return None


def _split_dense_pairs(plan: _Plan) -> None:
    order = list(plan.layers)
    dense = set(plan.dense())
    pairs = [
        (first, second)
        for first, second in itertools.pairwise(order)
        if {first, second} <= dense and plan.layers[first]["kernel"][1] == plan.layers[second]["kernel"][0]
    ]
    for first, second in sorted(pairs, key=lambda pair: -sum(_kernel_elements(plan, layer) for layer in pair)):
        column = f"{first}/kernel"
        row = f"{second}/kernel"
        axis = plan.axis(plan.layers[first]["kernel"][1])
        elements = _kernel_elements(plan, first) + _kernel_elements(plan, second)
        if (
            axis is None
            or elements < SMALL
            or plan.fixed(f"{first}/bias")
            or not (plan.open(column) and plan.open(row))
        ):
            continue
        plan.set(column, (None, axis), f"column, then {row} by row: the activation between stays split over {axis}")
        plan.set(f"{first}/bias", (axis,), f"split like the columns of {column}")
        plan.set(row, (axis, None), f"row, after {column} by column: one all-reduce over {axis} gives its output")
        plan.set(f"{second}/bias", (None,), f"added after the all-reduce of {row}")


def _kernel_elements(plan: _Plan, layer: str) -> int:
    return math.prod(plan.layers[layer]["kernel"])


def _split_lone_dense(plan: _Plan) -> None:
    dense = plan.dense()
    every = sum(math.prod(shape) for shape in plan.variables.values())
    for layer in sorted(dense, key=lambda layer: -_kernel_elements(plan, layer)):
        kernel = f"{layer}/kernel"
        elements = _kernel_elements(plan, layer)
        if not plan.open(kernel) or elements < SMALL:
            continue
        if elements < WORTH * every:
            share = f"{elements / every:.1%} of all elements"
            plan.set(kernel, (None, None), f"alone with {share}: saves less than its split would move")
            continue
        rows, columns = plan.variables[kernel]
        last = layer == dense[-1]
        if by_row := plan.axis(rows):
            plan.set(kernel, (by_row, None), f"alone, by row: one all-reduce over {by_row} gives its output")
            plan.set(f"{layer}/bias", (None,), f"added after the all-reduce of {kernel}")
        elif (by_column := plan.axis(columns)) and not last and not plan.fixed(f"{layer}/bias"):
            plan.set(kernel, (None, by_column), f"alone, by column: {by_column} does not divide its {rows} rows")
            plan.set(f"{layer}/bias", (by_column,), f"split like the columns of {kernel}")
        elif by_column and last:
            plan.set(kernel, (None, None), "its columns are the outputs, and no axis divides its rows")


def _split_convolutions(plan: _Plan) -> None:
    for layer, names in plan.layers.items():
        shape = names.get("kernel", ())
        if len(shape) == 4 and math.prod(shape) >= SMALL and (axis := plan.axis(shape[-1])):
            plan.set(f"{layer}/kernel", _at(4, 3, axis), f"convolution: {shape[-1]} output channels, in store")


def _leave_rest(plan: _Plan) -> None:
    for path in plan.free:
        shape = plan.variables[path]
        layer, _, name = path.rpartition("/")
        if math.prod(shape) < SMALL:
            reason = f"small, {_count(shape)}"
        elif name == "bias":
            reason = "the bias of a layer whose output is whole"
        elif name != "kernel" and len(shape) < 2:
            reason = "no kernel: each device needs all of it"
        elif plan.model_axes and not any(dim % size == 0 for dim in shape for size in plan.model_axes.values()):
            reason = f"no axis ({plan.sizes()}) divides a dim of {list(shape)}"
        elif name == "kernel" and len(shape) == 4:
            reason = f"convolution, and no axis ({plan.sizes()}) divides its {shape[-1]} output channels"
        else:
            noun = "kernel" if name == "kernel" else "variable"
            reason = f"no principle fits a {noun} of shape {list(shape)} in {layer or 'the model'}"
        plan.set(path, whole(shape), reason)


def _split_over_batch(
    plan: _Plan, config: LayoutConfig, axes: Mapping[str, int], structure: transformers.Structure
) -> None:
    axis = batch_axis(config, axes)
    for path in plan.free:
        shape = plan.variables[path]
        size = axes[axis] if axis else 1
        if axis is None or size == 1:
            plan.set(path, whole(shape), "no axis of more than one device is left to split weights over")
            continue
        spec = shard_spec(shape, axis, size, SMALL, first=int(path in structure.stacked))
        if any(spec):
            dim = spec.index(axis)
            plan.set(
                path, spec, f"{_count(shape)}: dim {dim} ({shape[dim]}) is the largest that {axis} divides, in store"
            )
        elif math.prod(shape) < SMALL:
            plan.set(path, spec, f"small, {_count(shape)}")
        else:
            plan.set(path, spec, f"{axis} of size {size} divides no dim of {list(shape)}")


def _count(shape: Shape) -> str:
    return f"{math.prod(shape):,} element{'' if math.prod(shape) == 1 else 's'}"


def _at(rank: int, dim: int, axis: str) -> Spec:
    return tuple(axis if index == dim else None for index in range(rank))


def to_yaml(proposals: Iterable[Proposal], config: LayoutConfig) -> str:
    """Writes the config's rules and the proposals as an option of the layout group.

    Args:
      proposals: of `propose` for that config.
      config: its rules come first, its inputs are kept.

    Returns:
      YAML with the keys of every layout option, each rule on a line under its reason; `auto` is false, so what it says
      no longer depends on the model.
    """
    lines = [
        "# Rules that layout=auto proposed for one model on one mesh.",
        "auto: false # proposes a rule for every variable that no rule catches",
    ]
    rules = []
    for rule in config.rules:
        rules += ["  # a rule of the config", f"  - {_flow(_rule_content(rule))}"]
    for proposal in proposals:
        rules += [f"  # {proposal.reason}", f"  - {_flow(_rule_content(proposal.rule))}"]
    lines += (
        ["rules: # first re.fullmatch on layer/variable wins; no match: replicated", *rules]
        if rules
        else ["rules: [] # first re.fullmatch on layer/variable wins; no match: replicated"]
    )
    what = "array of a batch -> one entry a dim; what is not named is split over its first dim"
    lines.append(f"inputs: # {what}" if config.inputs else f"inputs: {{}} # {what}")
    lines += [f"  {name}: {_flow(list(spec))}" for name, spec in config.inputs.items()]
    lines.append(f"sequence: {config.sequence or 'null'} # axis that splits tokens; null: none")
    lines.append("from_model: false # what no rule catches lies as the model's own get_layout_map says")
    return "\n".join(lines) + "\n"


def _rule_content(rule: RuleConfig) -> dict[str, object]:
    content: dict[str, object] = {"match": rule.match}
    for name in ("transformer", "store", "shard"):
        if (axis := getattr(rule, name)) is not None:
            content[name] = axis
    if rule.spec is not None:
        content["spec"] = list(rule.spec)
    if rule.min_elements:
        content["min_elements"] = rule.min_elements
    if rule.optional:
        content["optional"] = True
    return content


def _flow(content: object) -> str:
    text: str = yaml.safe_dump(content, default_flow_style=True, sort_keys=False, width=float("inf"))
    return text.strip()

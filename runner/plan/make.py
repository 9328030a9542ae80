"""Builds a plan from a built engine whose step is compiled."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from runner import layout
from runner.cluster import checks as checks_cluster
from runner.cluster import place
from runner.config.schema import LayoutConfig, ModelConfig, RunConfig
from runner.engine import registry
from runner.engine.base import Collective, LayerOutput, VariableInfo
from runner.engine.common import Engine
from runner.engine.mappings import shapes_of, subset
from runner.engine.optim import schedules
from runner.layout import Placement, hybrid, mesh, transformers
from runner.layout.axes import SEQUENCE
from runner.layout.inputs import input_specs
from runner.layout.paths import owner_of
from runner.model import gpt_options
from runner.plan import communication, communication_dtensor, forecast, memory
from runner.plan.base import ARITHMETIC, LayerPlan, Plan, Total, VariablePlan
from runner.plan.flops import attention_flops, head_flops, layer_flops
from runner.plan.placed_model import PlacedModel
from runner.plan.rates import hardware_rates, rates, traffic, unpriced_network
from runner.plan.tokens import step_flops
from runner.task.base import DataSpec

# Bytes per number.
_BFLOAT16 = 2
_FLOAT32 = 4
# What the plan's column `rule` says of a variable that no rule of the layout matched.
_AUTO = "layout=auto"
_MODEL_MAP = "the model's own map"


def make_plan(
    config: RunConfig, engine: Engine, data: DataSpec, choices: Mapping[str, str], total_steps: int = 0
) -> Plan:
    """Returns the plan of a run on a built engine, whose step is compiled if that counts the cost of its program.

    `choices` are the options by group, as Hydra composed them; `total_steps` is 0 if it is not known.
    """
    axes = config.mesh.axes
    model = placed_model(engine, data, config.layout, axes, config.engine.state)

    # The engine gives slots and variables in one mapping: without the variables, it is that of the slots.
    slots = dict(engine.variables())
    variables = {}
    for path in engine.placements:
        variables[path] = slots.pop(path)
    microbatches = config.trainer.accumulate_steps
    recomputed = 0.0
    if config.model.target == gpt_options.TARGET:
        recomputed = gpt_options.recomputed_share(config.model.options)
    compute_width = _FLOAT32
    if config.engine.precision == "bfloat16":
        compute_width = _BFLOAT16
    program = None
    if config.plan.compiler != ARITHMETIC and engine.counts_cost:
        program = engine.program_cost()
        collectives = engine.collectives()
    else:
        collectives = _collectives(model, config.engine.name, compute_width, recomputed, microbatches)

    layers = [_layer(model, output, microbatches) for output in model.outputs]
    flops = sum(layer.flops_per_device for layer in layers)
    processes = place.count(config.cluster)
    crossing = mesh.crossing(axes, processes)
    warnings = layout.lint(config.layout, engine.placements, axes)
    hardware = config.hardware
    verdict = None
    if hardware.is_here:
        device_rates = rates(config.plan, config.mesh, processes)
        step_traffic = traffic(collectives, axes, device_rates, crossing)
    else:
        device_rates = hardware_rates(config.plan, hardware, config.engine.precision)
        step_traffic = traffic(collectives, axes, device_rates, crossing, hardware)
        parts = memory.parts(
            model,
            engine.variables(),
            engine.saved_activations(),
            examples=config.dataset.batch_size // microbatches,
            compute_width=compute_width,
            accumulates=microbatches > 1,
            # After the activations, whose trace finds them.
            scores=engine.attention_scores(),
            device=hardware.kind or mesh.device_kind(config.mesh),
        )
        verdict = forecast.forecast(
            hardware,
            config.plan,
            config.engine.precision,
            parts,
            step_traffic,
            _work(model, flops, compute_width, recomputed, microbatches),
            tokens=data.task.tokens * config.dataset.batch_size,
            program=program,
            is_transformer=bool(model.structure.roles),
        )
        verdict = replace(verdict, mixture=_mixture(config.model, model, data))
        split = hybrid.split(config.layout, engine.placements, axes)
        if split is not None:
            verdict = replace(verdict, undivided=split.reason, split_axes=split.axes)
        warnings = [*unpriced_network(config.plan, hardware, axes), *warnings]
    return Plan(
        choices=dict(choices),
        engine=config.engine.name,
        axes=dict(axes),
        batch_size=config.dataset.batch_size,
        variables=_variable_plans(config.layout, model, variables, slots, collectives),
        layers=tuple(layers),
        totals=_totals(model, variables, slots, layers, accumulates=microbatches > 1),
        traffic=step_traffic,
        rates=device_rates,
        compute_seconds=flops / (device_rates.gflops * 1e9),
        warnings=tuple(warnings),
        program=program,
        processes=processes,
        machines=checks_cluster.machines(config.cluster, "cpu"),
        crossing=tuple(crossing),
        steps=total_steps,
        schedule=schedules.description(config.optimizer),
        forecast=verdict,
    )


def _variable_plans(
    config: LayoutConfig,
    model: PlacedModel,
    variables: Mapping[str, VariableInfo],
    slots: Mapping[str, VariableInfo],
    collectives: Iterable[Collective],
) -> tuple[VariablePlan, ...]:
    slot_bytes: Counter[str] = Counter()
    for path, info in slots.items():
        slot_bytes[owner_of(path)] += info.bytes_per_device
    moved_bytes: Counter[str] = Counter()
    for collective in collectives:
        moved_bytes[collective.origin] += collective.bytes
    plans = []
    for path, info in variables.items():
        placement = model.placements[path]
        plan = VariablePlan(
            path=path,
            shape=info.shape,
            dtype=info.dtype,
            rule=_rule_of(config, placement),
            spec=info.spec,
            trained=path in model.trained,
            bytes=_whole_bytes(info),
            bytes_per_device=info.bytes_per_device,
            slot_bytes_per_device=slot_bytes[path],
            moved_bytes=moved_bytes[path],
            passed=placement.passed,
            reason=placement.reason,
        )
        plans.append(plan)
    return tuple(plans)


def _collectives(
    model: PlacedModel, engine: str, compute_width: int, recomputed: float, microbatches: int
) -> list[Collective]:
    if registry.ENGINES[engine].full:
        of_microbatch = communication.collectives(model, compute_width=compute_width, recomputes=recomputed > 0)
    else:
        of_microbatch = communication_dtensor.collectives(model)
    return [replace(each, count=microbatches * each.count, bytes=microbatches * each.bytes) for each in of_microbatch]


def _work(model: PlacedModel, flops: float, compute_width: int, recomputed: float, microbatches: int) -> forecast.Work:
    """Returns what one device computes in a step, of which a share of the forward pass is recomputed."""
    attention = microbatches * attention_flops(model)
    head = microbatches * head_flops(model)
    # A forward pass is a third of the products of a step. Attention is repeated as soon as anything is.
    share = recomputed / 3
    attention_share = 0.0
    if share:
        attention_share = 1 / 3
    moved = memory.product_bytes(model, compute_width)
    repeated_bytes = share * memory.product_bytes(model, compute_width, with_head=False)
    return forecast.Work(
        flops=flops + share * (flops - attention - head) + attention_share * attention,
        attention_flops=(1 + attention_share) * attention,
        product_bytes=microbatches * (moved + repeated_bytes),
    )


def placed_model(
    engine: Engine, data: DataSpec, config: LayoutConfig, axes: Mapping[str, int], state: str
) -> PlacedModel:
    """Returns the model's variables and layers on the mesh, from which memory and FLOPs are estimated."""
    variables = engine.variables()
    inputs = input_specs(config, data.arrays, axes)
    roles = transformers.read(shapes_of(engine.placements)).roles
    experts = set()
    for path, role in roles.items():
        # Biases of experts have two dims and take no product.
        if role.experts is not None and len(variables[path].shape) == 3:
            experts.add(path)
    width = {path: np.dtype(variables[path].dtype).itemsize for path in engine.placements}
    # With `master` and with `bfloat16` layers use trained weights in bfloat16.
    if state != "float32":
        width |= dict.fromkeys(engine.trainable, _BFLOAT16)
    tokens = row_tokens(data)
    token_axis = None
    if tokens is not None and config.sequence is not None and axes[config.sequence] > 1:
        token_axis = config.sequence
    return PlacedModel(
        placements=engine.placements,
        trained=set(engine.trainable),
        outputs=engine.layer_outputs(),
        axes=axes,
        inputs=subset(inputs, data.task.input_names),
        width=width,
        whole=engine.used_whole(),
        experts=experts,
        row_tokens=tokens,
        token_axis=token_axis,
    )


def _mixture(config: ModelConfig, model: PlacedModel, data: DataSpec) -> str:
    """Returns what a mixture computes more than its tokens use, in words; empty: it is none."""
    experts = 0
    for path, role in model.structure.roles.items():
        if role.experts is not None:
            experts = max(experts, model.placements[path].shape[role.experts])
    if not experts:
        return ""
    line = f"all {experts} experts are computed for every token"
    # gpt's option, and that of KerasHub's mixtures, which have defaults of their own.
    per_token = config.options.get("experts_per_token", config.options.get("top_k"))
    if not isinstance(per_token, int):
        return f"{line}, those that it does not use too"
    shapes = shapes_of(model.placements)
    length = row_tokens(data) or 1
    vocabulary = data.task.outputs.units or 0
    all_flops = step_flops(shapes, model.trained, length, length, vocabulary)
    used_flops = step_flops(shapes, model.trained, length, length, vocabulary, used_experts=per_token / experts)
    return f"{line}: {all_flops / used_flops:.1f} times the FLOPs of the {per_token} that it uses"


def row_tokens(data: DataSpec) -> int | None:
    """Returns the tokens of a row of the first input that has tokens; None if no input has."""
    for name in data.task.input_names:
        spec = data.arrays[name]
        if SEQUENCE in spec.dims:
            return spec.shape[spec.dims.index(SEQUENCE)]
    return None


def _rule_of(config: LayoutConfig, placement: Placement) -> str:
    """Returns which of the layout's rules matched a variable, or what placed it instead; empty if nothing did."""
    if placement.rule is None:
        return ""
    if placement.rule < len(config.rules):
        return f"layout.rules[{placement.rule}]"
    # Rules past those of the layout's option were added by the runner.
    if config.auto:
        return _AUTO
    return _MODEL_MAP


def _whole_bytes(info: VariableInfo) -> int:
    return math.prod(info.shape) * np.dtype(info.dtype).itemsize


def _layer(model: PlacedModel, output: LayerOutput, microbatches: int) -> LayerPlan:
    """Returns the activations and FLOPs of a layer, which is called once per microbatch of a step."""
    return LayerPlan(
        layer=output.layer,
        kind=output.kind,
        shape=output.shape,
        spec=model.output_spec(output),
        bytes_per_device=model.output_bytes(output, np.dtype(output.dtype).itemsize),
        flops_per_device=microbatches * layer_flops(model, output),
    )


def _totals(
    model: PlacedModel,
    variables: Mapping[str, VariableInfo],
    slots: Mapping[str, VariableInfo],
    layers: Sequence[LayerPlan],
    *,
    accumulates: bool,
) -> dict[str, Total]:
    """Returns the bytes by kind of array.

    A gradient is as large as its variable is where layers use it, before it is sharded as the variable is stored.
    With `accumulates` the gradients of a step's microbatches are summed in float32 arrays that are sharded as the
    variables are. A variable that layers use in a narrower dtype than it is stored in has a copy, sharded as it is.
    """
    gradient_bytes = 0
    used_bytes = 0
    copied = []
    for path in model.trained:
        info = variables[path]
        width = model.width[path]
        gradient_bytes += math.prod(info.shape) * width
        used_bytes += math.prod(model.used_shape(model.placements[path])) * width
        if width < np.dtype(info.dtype).itemsize:
            copied.append(path)
    sums = Total(0, 0, "estimated")
    if accumulates:
        sums = _at_width(variables, dict.fromkeys(model.trained, _FLOAT32), model.trained)
    whole_activations = 0
    for output in model.outputs:
        whole_activations += math.prod(output.shape) * np.dtype(output.dtype).itemsize
    activations = sum(layer.bytes_per_device for layer in layers)

    totals = {"parameters": _counted(variables.values())}
    if copied:
        totals["copies"] = _at_width(variables, model.width, copied)
    totals["gradients"] = Total(gradient_bytes + sums.bytes, used_bytes + sums.bytes_per_device, "estimated")
    totals["slots"] = _counted(slots.values())
    totals["activations"] = Total(whole_activations, activations, "estimated")
    return totals


def _at_width(variables: Mapping[str, VariableInfo], width: Mapping[str, int], paths: Iterable[str]) -> Total:
    """Returns what variables would take at other bytes per number."""
    whole = 0
    per_device = 0
    for path in paths:
        info = variables[path]
        ratio = width[path] / np.dtype(info.dtype).itemsize
        whole += round(_whole_bytes(info) * ratio)
        per_device += round(info.bytes_per_device * ratio)
    return Total(whole, per_device, "estimated")


def _counted(infos: Iterable[VariableInfo]) -> Total:
    whole = 0
    per_device = 0
    for info in infos:
        whole += _whole_bytes(info)
        per_device += info.bytes_per_device
    return Total(whole, per_device, "counted")

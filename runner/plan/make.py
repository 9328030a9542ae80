"""Puts a plan together from a built engine whose step is compiled."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from runner import layout
from runner.checks import warnings as cautions
from runner.config.schema import RunConfig
from runner.engine.base import CountsCost, Engine, LayerOutput, VariableInfo
from runner.layout import mesh, transformers
from runner.layout.axes import SEQUENCE
from runner.layout.inputs import input_specs
from runner.optim.paths import owner_of
from runner.plan import estimate
from runner.plan.base import LayerPlan, Plan, Total, VariablePlan
from runner.plan.rates import rates, traffic
from runner.processes import place
from runner.task.base import DataSpec

# bytes of a number
_BFLOAT16 = 2
_FLOAT32 = 4
_AUTO = "layout=auto"
_OF_MODEL = "the model's own map"


def make_plan(
    config: RunConfig, engine: Engine, data: DataSpec, choices: Mapping[str, str], places: Sequence[str]
) -> Plan:
    """Returns the plan of a run; collectives are counted in the engine's program.

    Args:
      config: checked.
      engine: built, its step compiled.
      data: what the engine is built for.
      choices: group to option, as Hydra composed them.
      places: where each of the layout's rules is written.
    """
    held = engine.variables()
    model = placed_model(config, engine, data)
    axes = config.mesh.axes
    shapes = {path: placement.shape for path, placement in engine.placements.items()}
    proposals = layout.auto.propose(shapes, config.layout, axes) if config.layout.auto else []
    reasons = {proposal.path: proposal.reason for proposal in proposals}
    own = {path: held[path] for path in engine.placements}
    slots = {path: info for path, info in held.items() if path not in own}
    # Of each variable: what a device holds of its slots, and what a step moves of it.
    slot_bytes: Counter[str] = Counter()
    for path, info in slots.items():
        slot_bytes[owner_of(path)] += info.bytes_per_device
    microbatches = config.trainer.accumulate_steps
    moved = engine.collectives()
    moved_bytes: Counter[str] = Counter()
    for each in moved:
        moved_bytes[each.origin] += each.bytes
    layers = tuple(_layer(model, output, microbatches) for output in model.outputs)
    processes = place.count(config.cluster)
    crossing = mesh.crossing(axes, processes)
    at = rates(config.plan, config.mesh, processes)
    return Plan(
        choices=dict(choices),
        engine=config.engine.name,
        axes=dict(axes),
        batch_size=config.dataset.batch_size,
        variables=tuple(
            _variable(model, path, info, slot_bytes[path], moved_bytes[path], places, reasons)
            for path, info in own.items()
        ),
        layers=layers,
        totals=_totals(model, own, slots, layers, sums=microbatches > 1),
        traffic=traffic(moved, axes, at, crossing),
        rates=at,
        compute_seconds=sum(layer.flops_per_device for layer in layers) / (at.gflops * 1e9),
        warnings=(
            *cautions.of_crossing(config.layout, axes, processes),
            *layout.lint(config.layout, shapes, axes, engine.placements),
        ),
        program=engine.program_cost() if isinstance(engine, CountsCost) else None,
        proposed=layout.auto.to_yaml(proposals, config.layout) if config.layout.auto else "",
        processes=processes,
        crossing=tuple(crossing),
    )


def placed_model(config: RunConfig, engine: Engine, data: DataSpec) -> estimate.PlacedModel:
    """Returns what the estimates are made of.

    Args:
      config: checked.
      engine: built.
      data: what the engine is built for.
    """
    held = engine.variables()
    arrays = input_specs(config.layout, data.arrays, config.mesh.axes)
    roles = transformers.read({path: placement.shape for path, placement in engine.placements.items()}).roles
    rows = [data.arrays[name] for name in data.task.input_names if SEQUENCE in data.arrays[name].dims]
    split = config.layout.sequence is not None and config.mesh.axes[config.layout.sequence] > 1
    length = next((row.shape[row.dims.index(SEQUENCE)] for row in rows), None)
    width = {path: np.dtype(held[path].dtype).itemsize for path in engine.placements}
    if config.engine.state != "float32":
        width |= dict.fromkeys(engine.trainable, _BFLOAT16)
    return estimate.PlacedModel(
        placements=engine.placements,
        trained=set(engine.trainable),
        outputs=engine.layer_outputs(),
        axes=config.mesh.axes,
        inputs={name: arrays[name] for name in data.task.input_names},
        width=width,
        whole=engine.used_whole(),
        experts={path for path, role in roles.items() if role.experts is not None and len(held[path].shape) == 3},
        tokens=(length, config.layout.sequence) if split and length and config.layout.sequence else None,
    )


def _variable(
    model: estimate.PlacedModel,
    path: str,
    info: VariableInfo,
    slot_bytes: int,
    moved_bytes: int,
    places: Sequence[str],
    reasons: Mapping[str, str],
) -> VariablePlan:
    placement = model.placements[path]
    further = _AUTO if path in reasons else _OF_MODEL
    rule = "" if placement.rule is None else places[placement.rule] if placement.rule < len(places) else further
    return VariablePlan(
        path=path,
        shape=info.shape,
        dtype=info.dtype,
        rule=rule,
        spec=info.spec,
        trained=path in model.trained,
        bytes=_whole(info),
        bytes_per_device=info.bytes_per_device,
        slot_bytes_per_device=slot_bytes,
        moved_bytes=moved_bytes,
        passed=placement.passed,
        reason=placement.reason or reasons.get(path, ""),
    )


def _whole(info: VariableInfo) -> int:
    return math.prod(info.shape) * np.dtype(info.dtype).itemsize


def _layer(model: estimate.PlacedModel, output: LayerOutput, microbatches: int) -> LayerPlan:
    """Returns what a layer takes; it is called once for each micro-batch of a step."""
    size = estimate.output_bytes(model, output, np.dtype(output.dtype).itemsize)
    flops = microbatches * estimate.flops(model, output)
    return LayerPlan(output.layer, output.kind, output.shape, estimate.output_spec(model, output), size, flops)


def _totals(
    model: estimate.PlacedModel,
    own: Mapping[str, VariableInfo],
    slots: Mapping[str, VariableInfo],
    layers: Sequence[LayerPlan],
    *,
    sums: bool,
) -> dict[str, Total]:
    """Adds up; a gradient is as large as its variable in use, before it is split as the variable is stored.

    With `sums` the gradients of a step's micro-batches are added up in arrays that lie as the variables do, of float32
    at least. Where a variable is used in a narrower dtype than it is held in, a step has copies, which lie as it does.
    """
    used = {path: math.prod(model.used_shape(model.placements[path])) * model.width[path] for path in model.trained}
    whole = sum(math.prod(output.shape) * np.dtype(output.dtype).itemsize for output in model.outputs)
    gradients = _in(own, model.width, used)
    added = _in(own, dict.fromkeys(used, _FLOAT32), used) if sums else Total(0, 0, "estimated")
    copied = [path for path in used if model.width[path] < np.dtype(own[path].dtype).itemsize]
    return {
        "parameters": _held(own.values()),
        **({"copies": _in(own, model.width, copied)} if copied else {}),
        "gradients": Total(gradients.bytes + added.bytes, sum(used.values()) + added.bytes_per_device, "estimated"),
        "slots": _held(slots.values()),
        "activations": Total(whole, sum(layer.bytes_per_device for layer in layers), "estimated"),
    }


def _in(own: Mapping[str, VariableInfo], width: Mapping[str, int], paths: Iterable[str]) -> Total:
    """Returns what variables would take at other bytes a number."""
    shares = {path: width[path] / np.dtype(own[path].dtype).itemsize for path in paths}
    whole = sum(round(_whole(own[path]) * share) for path, share in shares.items())
    held = sum(round(own[path].bytes_per_device * share) for path, share in shares.items())
    return Total(whole, held, "estimated")


def _held(infos: Iterable[VariableInfo]) -> Total:
    listed = list(infos)
    return Total(sum(map(_whole, listed)), sum(info.bytes_per_device for info in listed), "counted")

"""Puts a plan together from a built engine whose step is compiled."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from runner import layout
from runner.config.schema import RunConfig
from runner.engine.base import Collective, CountsCost, DataSpec, Engine, VariableInfo
from runner.layout.inputs import input_specs
from runner.optim.paths import owner_of
from runner.plan import estimate
from runner.plan.base import LayerPlan, Plan, Total, VariablePlan
from runner.plan.rates import rates, traffic

_AUTO = "layout=auto"


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
    held, step, parts = engine.variables(), step_of(config, engine, data), config.trainer.accumulate_steps
    model = {path: held[path] for path in engine.placements}
    slots = {path: info for path, info in held.items() if path not in model}
    moved = engine.collectives()
    layers = tuple(_layer(step, index, parts) for index in range(len(step.outputs)))
    at = rates(config.plan, config.mesh)
    return Plan(
        choices=dict(choices),
        engine=config.engine.name,
        axes=dict(config.mesh.axes),
        batch_size=config.dataset.batch_size,
        variables=tuple(_variable(step, path, info, slots, moved, places) for path, info in model.items()),
        layers=layers,
        totals=_totals(step, model, slots, layers, sums=parts > 1),
        traffic=traffic(moved, config.mesh.axes, at),
        rates=at,
        compute_seconds=sum(layer.flops_per_device for layer in layers) / (at.gflops * 1e9),
        warnings=tuple(layout.lint(config.layout, _shapes(engine), config.mesh.axes)),
        program=engine.program_cost() if isinstance(engine, CountsCost) else None,
        proposed=_proposed(config, engine),
    )


def step_of(config: RunConfig, engine: Engine, data: DataSpec) -> estimate.Step:
    """Returns what the estimates are made of.

    Args:
      config: checked.
      engine: built.
      data: what the engine is built for.
    """
    held, arrays = engine.variables(), input_specs(config.layout, data.arrays, config.mesh.axes)
    return estimate.Step(
        placements=engine.placements,
        trained=set(engine.trainable),
        outputs=engine.layer_outputs(),
        axes=config.mesh.axes,
        inputs={name: arrays[name] for name in data.task.input_names},
        width={path: np.dtype(held[path].dtype).itemsize for path in engine.placements},
        whole=engine.used_whole(),
    )


def _shapes(engine: Engine) -> dict[str, tuple[int, ...]]:
    return {path: placement.shape for path, placement in engine.placements.items()}


def _proposed(config: RunConfig, engine: Engine) -> str:
    if not config.layout.auto:
        return ""
    proposals = layout.auto.propose(_shapes(engine), config.layout, config.mesh.axes)
    return layout.auto.to_yaml(proposals, config.layout)


def _variable(
    step: estimate.Step,
    path: str,
    info: VariableInfo,
    slots: Mapping[str, VariableInfo],
    moved: Sequence[Collective],
    places: Sequence[str],
) -> VariablePlan:
    placement = step.placements[path]
    rule = "" if placement.rule is None else places[placement.rule] if placement.rule < len(places) else _AUTO
    own = [each for each in moved if each.origin == path]
    return VariablePlan(
        path=path,
        shape=info.shape,
        dtype=info.dtype,
        rule=rule,
        spec=info.spec,
        trained=path in step.trained,
        bytes=_whole(info),
        bytes_per_device=info.bytes_per_device,
        slot_bytes_per_device=sum(s.bytes_per_device for name, s in slots.items() if owner_of(name) == path),
        moved_bytes=sum(each.bytes for each in own),
        passed=placement.passed,
    )


def _whole(info: VariableInfo) -> int:
    return math.prod(info.shape) * np.dtype(info.dtype).itemsize


def _layer(step: estimate.Step, index: int, parts: int) -> LayerPlan:
    """Returns what a layer takes; it is called once for each of the parts that a batch is computed in."""
    output = step.outputs[index]
    size = estimate.output_bytes(step, output, np.dtype(output.dtype).itemsize)
    spec = estimate.output_spec(step, output)
    return LayerPlan(output.layer, output.kind, output.shape, spec, size, parts * estimate.flops(step, output))


def _totals(
    step: estimate.Step,
    model: Mapping[str, VariableInfo],
    slots: Mapping[str, VariableInfo],
    layers: Sequence[LayerPlan],
    *,
    sums: bool,
) -> dict[str, Total]:
    """Adds up; a gradient is as large as its variable in use, before it is split as the variable is stored.

    With `sums` the gradients of a batch's parts are added up in arrays that lie as the variables do.
    """
    used = {path: math.prod(step.used_shape(step.placements[path])) * step.width[path] for path in step.trained}
    whole = sum(math.prod(output.shape) * np.dtype(output.dtype).itemsize for output in step.outputs)
    return {
        "parameters": _held(model.values()),
        "gradients": Total(
            sum(_whole(model[path]) for path in used) * (2 if sums else 1),
            sum(used.values()) + sum(model[path].bytes_per_device for path in used if sums),
            "estimated",
        ),
        "slots": _held(slots.values()),
        "activations": Total(whole, sum(layer.bytes_per_device for layer in layers), "estimated"),
    }


def _held(infos: Iterable[VariableInfo]) -> Total:
    listed = list(infos)
    return Total(sum(map(_whole, listed)), sum(info.bytes_per_device for info in listed), "counted")

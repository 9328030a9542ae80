"""Costs of layouts and plans by the number of a model's variables, and by the depth of a transformer.

The models are paths and shapes: no framework is imported, and nothing is compiled, but for the depth.
"""

from __future__ import annotations

import gc
import math
import os
import re
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Mapping, Sequence

from runner import layout
from runner.config.schema import LayoutConfig, RuleConfig
from runner.data.base import ArraySpec
from runner.engine.base import Collective, LayerInput, LayerOutput, VariableInfo
from runner.engine.jax.collectives import collectives
from runner.layout import Placement, auto, validation
from runner.layout.specs import Shape
from runner.optim.paths import slot_path
from runner.plan.make import make_plan
from runner.task.base import DataSpec
from tests.campaign.growth_base import Dimension
from tests.configs import with_keys
from tests.engine import cases
from tests.forks import ROOT
from tests.numpy_engine import KnownTask

_AXES = {"batch": 2, "model": 4}
_TIMES = 3  # the least of so many, which a busy machine disturbs least
_SIZES = (100, 1_000, 10_000)


def blocks(count: int) -> dict[str, Shape]:
    """Returns as many variables as are asked for: of attentions of two forms, mixtures, and of what has no role."""
    variables: dict[str, Shape] = {}
    index = 0
    while len(variables) < count:
        block = f"decoder/block_{index}"
        index += 1
        inward: Shape = (64, 4, 16)
        outward: Shape = (4, 16, 64)
        if index % 2:  # flat: a norm of the queries tells how wide a head is
            inward = outward = (64, 64)
        variables |= {f"{block}/attention/{name}/kernel": inward for name in ("query", "key", "value")}
        variables[f"{block}/attention/query_norm/scale"] = (16,)
        variables[f"{block}/attention/output/kernel"] = outward
        variables[f"{block}/experts/up"] = (8, 64, 128)
        variables[f"{block}/experts/down"] = (8, 128, 64)
        variables[f"{block}/extra/kernel"] = (65, 257)
        variables[f"{block}/convolution/kernel"] = (3, 64, 65)
        variables[f"convolution_{index}/kernel"] = (5, 64, 66)
    return dict(list(variables.items())[:count])


def _seconds(function: Callable[[], object]) -> float:
    """Returns the least CPU seconds of a few calls, without the passes of the garbage collector.

    A pass goes through every object of the process, so its cost depends on what ran before, and a longer call has more
    passes. With them, the exponent of a cost that grows with the size was between 0.87 and 1.23.
    """
    taken = []
    gc.collect()
    gc.disable()
    try:
        for _ in range(_TIMES):
            start = time.process_time()
            function()
            taken.append(time.process_time() - start)
    finally:
        gc.enable()
    return min(taken)


def proposing(count: int) -> float:
    """Returns the seconds of `layout=auto` for so many variables: proposals, placements and warnings."""
    variables, config = blocks(count), LayoutConfig(auto=True)

    def run() -> None:
        placed = layout.resolve(config, variables, _AXES)
        layout.lint(config, variables, _AXES, placed)
        auto.to_yaml(auto.propose(variables, config, _AXES), config)

    return _seconds(run)


def a_few_rules(count: int) -> float:
    """Returns the seconds in which a few rules place so many variables, of which none catches most."""
    variables = blocks(count)
    rules = [
        RuleConfig(match=".*/attention/.*", transformer="model", optional=True),
        RuleConfig(match=".*/extra/kernel", spec=[None, "model"], optional=True),
        RuleConfig(match=".*", shard="batch", min_elements=1024),
    ]
    return _seconds(lambda: _resolved(LayoutConfig(rules=rules), variables))


def a_rule_each(count: int) -> float:
    """Returns the seconds in which as many rules as variables are checked and place these, as `auto` writes them."""
    variables = blocks(count)
    rules = [RuleConfig(match=re.escape(path), spec=[None] * len(shape)) for path, shape in variables.items()]
    return _seconds(lambda: _resolved(LayoutConfig(rules=rules), variables))


def _resolved(config: LayoutConfig, variables: Mapping[str, Shape]) -> None:
    validation.check(config, _AXES)
    layout.lint(config, variables, _AXES, layout.resolve(config, variables, _AXES))


class _DeepEngine:
    """What a plan asks of an engine, of a model of so many layers, each made of the one before it."""

    def __init__(self, count: int) -> None:
        shapes: dict[str, Shape] = {f"block_{index}/dense/kernel": (64, 64) for index in range(count)}
        self.placements = {path: Placement(path, shape, (None, "model"), None) for path, shape in shapes.items()}
        # Only the last is trained, so that what depends on trained variables is looked for along the whole model.
        self.trainable: Sequence[str] = [next(reversed(shapes))]

    def variables(self) -> Mapping[str, VariableInfo]:
        """Returns the variables, and two slots of each."""
        held = {
            path: VariableInfo(placement.shape, "float32", placement.spec, 4 * math.prod(placement.shape) // 4)
            for path, placement in self.placements.items()
        }
        return held | {slot_path(slot, path): info for path, info in held.items() for slot in ("m", "v")}

    def layer_outputs(self) -> list[LayerOutput]:
        """Returns the output of each block, whose kernel lies below it, and of an activation behind it."""
        outputs: list[LayerOutput] = []
        before, shape = "(inputs)", (8, 64, 64)
        for path in self.placements:
            block = path.split("/")[0]
            outputs.append(LayerOutput(block, "Block", shape, "float32", (LayerInput(before, shape),)))
            before = f"{block}_activation"
            outputs.append(LayerOutput(before, "Activation", shape, "float32", (LayerInput(block, shape),)))
        return outputs

    def collectives(self) -> list[Collective]:
        """Returns one collective of each variable."""
        return [Collective("all_reduce", "batch", "backward", path, 1, 64) for path in self.placements]

    def used_whole(self) -> Collection[str]:
        """Returns nothing: no operation needs a whole variable."""
        return ()


def plan_rows(count: int) -> float:
    """Returns the seconds that a plan of so many layers takes once its step is compiled."""
    config = cases.config(_AXES)
    config = with_keys(config, {"layout": LayoutConfig(rules=[])})
    arrays = {"tokens": ArraySpec((64, 64), "float32"), "label": ArraySpec((), "int32")}
    spec = DataSpec(arrays, KnownTask(arrays))
    engine = _DeepEngine(count)
    return _seconds(lambda: make_plan(config, engine, spec, {}, []))  # type: ignore[arg-type]


def origins(count: int) -> float:
    """Returns the seconds in which so many collectives are put down to as many variables."""
    shapes = {f"block_{index}/dense/kernel": (64, 64) for index in range(count // 2)}
    # And of one layer that has many variables of one shape.
    shapes |= {f"stack/kernel_{index}": (32, 64) for index in range(count - len(shapes))}
    placed = {path: Placement(path, shape, (None, None), None) for path, shape in shapes.items()}
    lines = [
        f"  %all-reduce.{index} = f32[{shape[0]},{shape[1]}]{{1,0}} all-reduce(%dot.{index}), channel_id={index}, "
        "replica_groups={{0,4},{1,5},{2,6},{3,7}}, to_apply=%add, "
        f'metadata={{op_name="jit(step)/transpose(jvp({path.rpartition("/")[0]}))/dot_general"}}'
        for index, (path, shape) in enumerate(shapes.items())
    ]
    layers = list(dict.fromkeys(path.rpartition("/")[0] for path in shapes))
    text = "\n".join(lines)

    def run() -> None:
        counted = collectives(text, _AXES, placed, layers, list(placed), {"batch"}, looped=False)
        assert {each.origin for each in counted} == set(placed)

    return _seconds(run)


def plan_of_depth(depth: int) -> float:
    """Returns the CPU seconds of `runner.plan` for a transformer of so many blocks on engine jax, start and all."""
    overrides = [
        *("dataset=pydoc", "task=language_model", "model=gpt", "engine=jax", "engine.compilation_cache=false"),
        *("model.dim=32", f"model.depth={depth}", "dataset.batch_size=8", "dataset.sequence_length=32"),
    ]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "runner.plan", *overrides]
        environment = os.environ | {"PYTHONPATH": str(ROOT)}
        subprocess.run(command, cwd=folder, env=environment, check=True, capture_output=True, timeout=600)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


# Per power of ten of the size a cost may grow by a fifth more than the size does, which a sort and the memory's caches
# take; what tries every rule on every variable, or every layer for every collective, grows by the square.
IN_PROCESS = (
    Dimension("variables under layout=auto", _SIZES, 1.2, proposing),
    Dimension("variables under a few rules", _SIZES, 1.2, a_few_rules),
    Dimension("variables under a rule each", _SIZES, 1.2, a_rule_each),
    Dimension("layers of a plan", _SIZES, 1.2, plan_rows),
    Dimension("collectives of a plan", _SIZES, 1.2, origins),
)
# What is measured in processes of their own. Blocks that are scanned are compiled once: only their sizes grow.
DEEP = (Dimension("blocks of gpt in a plan", (8, 32, 128), 0.5, plan_of_depth),)
DIMENSIONS = (*IN_PROCESS, *DEEP)

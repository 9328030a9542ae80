"""Runs in a process of its own: prints what a plan estimates of a step's operations, and what XLA counts.

Usage: python -m tests.plan.flops_worker JSON, with JSON {name: [overrides]}; all meshes of eight devices.
"""

import json
import sys

import runner
from runner.data import loading
from runner.engine import make_engine, registry
from runner.plan.command import compile_step
from runner.plan.flops import layer_flops
from runner.plan.make import placed_model
from runner.task.base import DataSpec
from runner.task.registry import make_task


def counted(overrides: list[str]) -> dict[str, float]:
    """Returns a device's operations of one step, estimated and of the program, and the program's temporaries."""
    config = runner.compose(*overrides, "mesh.device=cpu")
    data = loading.load(config.dataset, config.trainer.seed, task=config.task)
    task = make_task(config.task, data.specs, data.train, vocabulary=data.vocabulary)
    spec = DataSpec(task.arrays, task)
    registry.prepare(config)
    engine = make_engine(config, spec, 1, planning=True)
    engine.build()
    compile_step(engine, spec, config.dataset.batch_size, 1)
    model = placed_model(engine, spec, config.layout, config.mesh.axes, config.engine.state)
    program = engine.program_cost()  # type: ignore[attr-defined]
    return {
        "estimated": sum(layer_flops(model, output) for output in model.outputs),
        "counted": program.flops,
        "temporaries": program.temporary_bytes,
    }


if __name__ == "__main__":
    print(json.dumps({name: counted(overrides) for name, overrides in json.loads(sys.argv[1]).items()}))

"""Runs in a process of its own: what the programs of `cases.EXACT` hold, and what is estimated."""

import json
import math
from collections.abc import Iterator
from typing import Any

import tensorflow as tf
from tensorflow.python.eager import context

from runner.engine import make_engine, registry
from runner.plan import communication_dtensor
from runner.plan.command import compile_step
from runner.plan.flops import layer_flops
from runner.plan.make import placed_model
from tests.configs import with_keys
from tests.engine import cases as engines
from tests.plan import cases
from tests.plan.products import operations

DATA = engines.data()


def functions() -> set[str]:
    """Returns the names of TensorFlow's functions."""
    return set(map(str, context.context().list_function_names()))


def sizes(function: str, seen: set[str]) -> Iterator[int]:
    """Yields the bytes of each collective of a function and of those that it calls."""
    seen.add(function)
    for node in context.context().get_function_def(function).node_def:
        if node.op.startswith("Collective") and not node.op.startswith("CollectiveInit"):
            shape = [dim.size for dim in node.attr["_output_shapes"].list.shape[0].dim]
            yield math.prod(shape) * tf.dtypes.as_dtype(node.attr["T"].type).size
        for value in node.attr.values():
            if value.HasField("func") and value.func.name not in seen:
                yield from sizes(value.func.name, seen)


def counted(model: str, mesh: str, preset: str) -> dict[str, Any]:
    """Returns collectives and operations, of the program and from shapes."""
    config = cases.config(model, mesh, preset)
    config = with_keys(config, {"engine.combine_all_reduces": False})  # merged ones carry padding
    registry.prepare(config)
    engine = make_engine(config, DATA, 1, planning=True)
    engine.build()
    before = functions()
    compile_step(engine, DATA, config.dataset.batch_size, 1)
    (body,) = [name for name in functions() - before if name.endswith("_body")]
    placed = placed_model(engine, DATA, config.layout, config.mesh.axes, config.engine.state)
    return {
        "counted": sorted(sizes(body, set())),
        "estimated": sorted(each.bytes for each in communication_dtensor.collectives(placed)),
        "operations": operations(body),
        "estimated_operations": sum(layer_flops(placed, output) for output in placed.outputs),
    }


if __name__ == "__main__":
    print(json.dumps({"-".join(case): counted(*case) for case in cases.EXACT}))

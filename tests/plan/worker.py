"""Runs in a process of its own, for virtual devices can't change within one: plans a model and looks at what is there.

Usage: python -m tests.plan.worker JSON, with JSON {"combine": bool} and for the MLP {"axes": {...}, "rules": [[match,
spec], ...]}, else {"case": [model, mesh, layout]}.
"""

from __future__ import annotations

import json
import math
import sys
from dataclasses import asdict
from typing import Any

import numpy as np

from runner.config.schema import RuleConfig, RunConfig
from runner.plan.command import compile_step
from runner.plan.make import make_plan, placed_model
from tests.configs import with_keys
from tests.engine import cases as engines
from tests.plan import cases, moved


def nodes_of(names: list[str]) -> dict[str, int]:
    """Counts every collective node of the functions that are the step's loop body."""
    import tensorflow as tf
    from tensorflow.python.eager import context

    (body,) = [name for name in names if name.endswith("_body")]
    found = [n for n in context.context().get_function_def(body).node_def if n.op.startswith("Collective")]
    shapes = [[dim.size for dim in node.attr["_output_shapes"].list.shape[0].dim] for node in found]
    widths = [tf.dtypes.as_dtype(node.attr["T"].type).size for node in found]
    return {"count": len(found), "bytes": sum(math.prod(s) * w for s, w in zip(shapes, widths, strict=True))}


def held_bytes(engine: Any) -> dict[str, list[int]]:
    """Returns the bytes of each variable's and slot's shard on every device."""
    from tensorflow.experimental import dtensor

    from runner.engine.dtensor.variable_reads import read_stored

    every = {**engine._state.variables, **engine._state.slots}
    return {path: [shard.numpy().nbytes for shard in dtensor.unpack(read_stored(v))] for path, v in every.items()}


def config_of(request: dict[str, Any]) -> RunConfig:
    """Returns the config that is asked for."""
    if "case" in request:
        config = cases.config(*request["case"])
    else:
        config = engines.config(request["axes"])
        config = with_keys(
            config,
            {
                "layout.rules": [RuleConfig(match, spec) for match, spec in request["rules"]],
                "dataset.batch_size": cases.BATCH,
            },
        )
    return with_keys(config, {"engine.combine_all_reduces": request["combine"], "engine.canary": False})


def main() -> None:
    """Prints a line of JSON."""
    config = config_of(json.loads(sys.argv[1]))
    batch, axes = config.dataset.batch_size, config.mesh.axes
    from runner.engine import make_engine
    from runner.engine.dtensor import private

    data = engines.data()
    engine = make_engine(config, data, 1)
    engine.build()
    before = private.function_names()
    compile_step(engine, data, batch, 1)
    names = sorted(private.function_names() - before)
    to_read = make_engine(config, data, 1, planning=True)
    to_read.build()
    compile_step(to_read, data, batch, 1)
    plan = make_plan(config, engine, data, {}, [f"layout.rules[{i}]" for i in range(len(config.layout.rules))])
    devices = int(np.prod(list(axes.values())))
    held = held_bytes(engine)
    planned = {path: [info.bytes_per_device] * devices for path, info in engine.variables().items()}
    totals = plan.totals
    assert totals["parameters"].bytes_per_device == sum(sizes[0] for p, sizes in held.items() if "optimizer/" not in p)
    assert totals["slots"].bytes_per_device == sum(sizes[0] for p, sizes in held.items() if "optimizer/" in p)
    result = {
        "counted": [asdict(each) for each in engine.collectives()],
        "estimated": [asdict(each) for each in moved.collectives(placed_model(config, engine, data))],
        "read": [asdict(each) for each in to_read.collectives()],
        "nodes": nodes_of(names),
        "planned": planned,
        "held": held,
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()

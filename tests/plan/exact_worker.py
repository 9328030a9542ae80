"""Runs in a process of its own: plans every case of `cases.EXACT`, and prints what is counted and what is estimated.

One process for all: an engine that only plans runs nothing, and meshes of eight devices share them.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

from runner.engine import make_engine
from runner.engine.dtensor import private
from runner.plan import estimate
from runner.plan.command import compile_step
from runner.plan.make import placed_model
from tests.configs import with_keys
from tests.engine import cases as engines
from tests.plan import cases, moved
from tests.plan.products import operations

DATA = engines.data()


def counted(model: str, mesh: str, preset: str) -> dict[str, Any]:
    """Returns collectives and operations, of the program and from shapes."""
    config = cases.config(model, mesh, preset)
    config = with_keys(config, {"engine.combine_all_reduces": False})  # merged ones carry padding
    engine = make_engine(config, DATA, 1, planning=True)
    engine.build()
    before = private.function_names()
    compile_step(engine, DATA, config.dataset.batch_size, 1)
    (body,) = [name for name in private.function_names() - before if name.endswith("_body")]
    placed = placed_model(config, engine, DATA)
    return {
        "counted": [asdict(each) for each in engine.collectives()],
        "estimated": [asdict(each) for each in moved.collectives(placed)],
        "variables": list(engine.placements),
        "operations": operations(body),
        "estimated_operations": sum(estimate.flops(placed, output) for output in placed.outputs),
    }


if __name__ == "__main__":
    print(json.dumps({"-".join(case): counted(*case) for case in cases.EXACT}))

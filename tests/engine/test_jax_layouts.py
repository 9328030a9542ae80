"""Layouts on the engine `jax`: variables and slots lie as told, and a plan reads the program that trains."""

from __future__ import annotations

from typing import Any

import pytest

from tests.engine.jax_runs import answers

# Axes, preset, builder, its options; a variable's spec; a collective: kind, axis, phase, origin.
CASES: dict[str, Any] = {
    "fsdp_megatron": (
        *({"batch": 2, "model": 2}, "mlp.sequential", {"hidden": [128]}),
        *("d1/kernel", ["batch", "model"], "all_reduce model forward d2"),
    ),
    "spatial": (
        *({"batch": 2, "height": 2}, "convnet.build", {"dropout": 0.5}),
        *("conv3/kernel", ["None"] * 4, "permute height forward conv2"),
    ),
}
PROGRAM = r"""
import json, sys
from dataclasses import replace
import numpy as np
from runner.config import search_path
from runner.config.build import build
from runner.config.schema import LayoutConfig
from runner.data.base import ROW, WEIGHT, ArraySource
from runner.engine import make_engine, registry
from runner.engine.base import cache_on_device
from tests.configs import with_keys
from tests.engine import cases

def made(config, *, cached, planning=False):
    data, batches = cases.data(), cases.batches(4, 64)
    engine = make_engine(config, data, 4, planning=planning)
    engine.build()
    if cached:  # in reverse, so that rows that are taken in order would be wrong
        arrays = {
            name: np.ascontiguousarray(batches.arrays[name][::-1]).reshape(-1, *spec.shape)
            for name, spec in data.arrays.items()
        }
        cache_on_device(engine, ArraySource(arrays, data.arrays))
        rows = np.arange(4 * 64, dtype=np.int32).reshape(4, 64)[::-1]
        batches = replace(batches, arrays={ROW: rows, WEIGHT: batches.arrays[WEIGHT]})
    placed = engine.place(batches)
    if planning:
        engine.compile(placed)
        return engine, None
    return engine, engine.train_steps(placed, 0).read().sums["loss"].tolist()

found = {}
for layout, (axes, target, options, *_) in json.loads(sys.argv[1]).items():
    config = cases.config(axes, None, f"runner.model.{target}", **options)
    rules = build(LayoutConfig, search_path.content_of(f"layout/{layout}"), "layout")
    config = with_keys(config, {"engine.name": "jax", "layout": rules, "dataset.batch_size": 64})
    registry.load(config)
    engine, losses = made(config, cached=True)
    streamed, same_losses = made(config, cached=False)
    planned, _ = made(config, cached=True, planning=True)
    moved, expected = engine.collectives(), planned.collectives()
    found[layout] = {
        "specs": {path: [str(axis) for axis in info.spec] for path, info in engine.variables().items()},
        "collectives": [" ".join((each.kind, each.axis, each.phase, each.origin)) for each in moved],
        "as planned": moved == expected,
        "as streamed": [np.allclose(losses, same_losses, 1e-6, 0), moved == streamed.collectives()],
    }
print(json.dumps(found))
"""
pytestmark = [pytest.mark.slow, pytest.mark.nightly]
found = answers(PROGRAM, CASES)


@pytest.mark.parametrize("layout", CASES)
def test_variables_lie_as_told_and_a_plan_has_the_communication_of_training(found: Any, layout: str) -> None:
    *_, variable, spec, collective = CASES[layout]
    for path in (variable, f"optimizer/m/{variable}", f"optimizer/v/{variable}"):
        assert found[layout]["specs"][path] == spec, path
    assert collective in found[layout]["collectives"]
    assert found[layout]["as planned"], "a plan reads another program than training's"
    assert found[layout]["as streamed"] == [True, True], "to take images from where they lie costs no communication"

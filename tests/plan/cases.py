"""Layouts of the MLP 784-128-10 that the counted and the estimated plan are compared on, and hand-made plans."""

from __future__ import annotations

from typing import Any

from runner.engine.base import LayerOutput
from runner.layout import Placement
from runner.plan.base import LayerPlan, Plan, Rates, Total, Traffic, VariablePlan
from runner.plan.estimate import Step

BATCH = 128
IMAGE = ("batch", None, None, None)
COLUMN_ROW = [["d1/kernel", [None, "model"]], ["d1/bias", ["model"]], ["d2/kernel", ["model", None]]]
LAYOUTS: dict[str, tuple[dict[str, int], list[Any]]] = {
    "replicated": ({"batch": 8}, []),
    "kernels_over_batch": ({"batch": 8}, [["d1/kernel", ["batch", None]], ["d2/kernel", ["batch", None]]]),
    "column_row": ({"batch": 4, "model": 2}, COLUMN_ROW),
    "one_device_of_batch": ({"batch": 1, "model": 8}, COLUMN_ROW),
}
_SHAPES = {"d1/kernel": (784, 128), "d1/bias": (128,), "d2/kernel": (128, 10), "d2/bias": (10,)}


def step(axes: dict[str, int], rules: list[Any]) -> Step:
    """Returns what the estimates take, for the MLP."""
    specs = {match: tuple(spec) for match, spec in rules}
    placements = {
        path: Placement(path, shape, specs.get(path, (None,) * len(shape)), None) for path, shape in _SHAPES.items()
    }
    outputs = [LayerOutput("d1", "Dense", (BATCH, 128), "float32"), LayerOutput("d2", "Dense", (BATCH, 10), "float32")]
    return Step(placements, set(placements), outputs, axes, IMAGE, dict.fromkeys(placements, 4))


def plan(count: int = 4, **changes: Any) -> Plan:
    """Returns a plan of so many variables with long paths, all split over `model`."""
    variables = tuple(
        VariablePlan(
            path=f"encoder/block_{index}/attention/query_projection/kernel",
            shape=(768, 12, 64),
            dtype="float32",
            rule="override layout.rules=[{match: '.*kernel', spec: [null, model, null]}]",
            spec=(None, "model", None),
            trained=True,
            bytes=2359296,
            bytes_per_device=1179648,
            slot_bytes_per_device=2359296,
            moved_bytes=1179648,
            moved_source="counted",
        )
        for index in range(count)
    )
    fields: dict[str, Any] = {
        "choices": {"model": "vit", "layout": "megatron"},
        "engine": "keras_dtensor",
        "axes": {"batch": 4, "model": 2},
        "batch_size": 128,
        "variables": variables,
        "layers": (LayerPlan("encoder/block_0/mlp", "Dense", (128, 64, 64), ("batch", None, None), 524288, 7),),
        "totals": {key: Total(4096, 1024, "counted") for key in ("parameters", "gradients", "slots", "activations")},
        "traffic": (
            Traffic("all_reduce", "model", "forward", 2, 1000, 0.001, "counted"),
            Traffic("all_reduce", "batch", "backward", 1, 500, 0.002, "counted"),
        ),
        "rates": Rates("gpu", 300.0, 19500.0, "an A100's data sheet"),
        "compute_seconds": 0.004,
    }
    return Plan(**(fields | changes))

"""Models and layouts that the counted and the estimated plan are compared on, and hand-made plans."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from runner.config import search_path
from runner.config.build import build
from runner.config.schema import LayoutConfig, RunConfig
from runner.engine.base import LayerOutput
from runner.layout import Placement
from runner.plan import forecast
from runner.plan.base import Forecast, LayerPlan, MemoryPart, Plan, Rates, Total, Traffic, VariablePlan
from runner.plan.placed_model import PlacedModel
from tests import forks
from tests.configs import with_keys
from tests.engine import cases as engines

BATCH = 128
INPUTS = {"image": ("batch", None, None, None)}
COLUMN_ROW = [["d1/kernel", [None, "model"]], ["d1/bias", ["model"]], ["d2/kernel", ["model", None]]]
LAYOUTS: dict[str, tuple[dict[str, int], list[Any]]] = {
    "replicated": ({"batch": 8}, []),
    "kernels_over_batch": ({"batch": 8}, [["d1/kernel", ["batch", None]], ["d2/kernel", ["batch", None]]]),
    "column_row": ({"batch": 4, "model": 2}, COLUMN_ROW),
    "one_device_of_batch": ({"batch": 1, "model": 8}, COLUMN_ROW),
}
MESHES = {"batch8": {"batch": 8}, "batch4_model2": {"batch": 4, "model": 2}, "batch2_model4": {"batch": 2, "model": 4}}
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "mlp": ("runner.model.mlp.sequential", {"hidden": [128, 64]}),
    "convnet": ("runner.model.convnet.build", {}),
    "resnet": ("runner.model.resnet.build", {"widths": [8, 16]}),
    "vit": ("runner.model.vit.build", {"depth": 1, "dim": 32, "mlp": 64}),
}
# Model, mesh and layout, where what is estimated must be what the program holds.
EXACT = [
    ("mlp", "batch8", "fsdp"),
    ("mlp", "batch2_model4", "fsdp_megatron"),
    ("mlp", "batch4_model2", "auto"),
    ("convnet", "batch8", "fsdp"),
    ("convnet", "batch4_model2", "auto"),
    ("resnet", "batch8", "replicated"),
    ("resnet", "batch4_model2", "megatron"),
    ("vit", "batch8", "replicated"),
    ("vit", "batch4_model2", "megatron"),
    ("vit", "batch2_model4", "fsdp_megatron"),
]
_SHAPES = {"d1/kernel": (784, 128), "d1/bias": (128,), "d2/kernel": (128, 10), "d2/bias": (10,)}


def config(model: str, mesh: str, preset: str) -> RunConfig:
    """Returns the config of a small model under a preset of layouts."""
    target, options = MODELS[model]
    made = with_keys(engines.config(MESHES[mesh], target=target), {"model.options": dict(options)})
    held = build(LayoutConfig, search_path.content_of(f"layout/{preset}"), "layout")
    return with_keys(made, {"layout": held, "dataset.batch_size": 32})


def planned(folder: Path, *words: str) -> dict[str, Any]:
    """Runs the command of plans, and returns what it wrote in the folder of the run."""
    forks.python("-m", "runner.plan", *words, f"hydra.run.dir={folder}", folder=folder.parent)
    return dict(json.loads((folder / "plan.json").read_text()))


Variables = Mapping[str, tuple[tuple[int, ...], tuple[str | None, ...]]]


def model(
    variables: Variables, outputs: list[LayerOutput], axes: dict[str, int], inputs: dict[str, Any], **fields: Any
) -> PlacedModel:
    """Returns a model whose float32 variables, by path with shape and spec, are all trained."""
    placements = {path: Placement(path, shape, spec, None) for path, (shape, spec) in variables.items()}
    return PlacedModel(placements, set(placements), outputs, axes, inputs, dict.fromkeys(placements, 4), **fields)


def placed(axes: dict[str, int], rules: list[Any]) -> PlacedModel:
    """Returns what the estimates take, for the MLP."""
    specs = {match: tuple(spec) for match, spec in rules}
    variables = {path: (shape, specs.get(path, (None,) * len(shape))) for path, shape in _SHAPES.items()}
    outputs = [LayerOutput("d1", "Dense", (BATCH, 128), "float32"), LayerOutput("d2", "Dense", (BATCH, 10), "float32")]
    return model(variables, outputs, axes, INPUTS)


def plan(count: int = 4, **changes: Any) -> Plan:
    """Returns a plan of so many variables with long paths, all split over `model`."""
    variables = tuple(
        VariablePlan(
            path=f"encoder/block_{index}/attention/query_projection/kernel",
            shape=(768, 12, 64),
            dtype="float32",
            rule="layout.rules[0]",
            spec=(None, "model", None),
            trained=True,
            bytes=2359296,
            bytes_per_device=1179648,
            slot_bytes_per_device=2359296,
            moved_bytes=1179648,
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
            Traffic("all_reduce", "model", "forward", 2, 1000, 0.001),
            Traffic("all_reduce", "batch", "backward", 1, 500, 0.002),
        ),
        "rates": Rates("gpu", 300.0, 19500.0, "an A100's data sheet"),
        "compute_seconds": 0.004,
    }
    return Plan(**(fields | changes))


def judged(
    config: RunConfig, parts: tuple[MemoryPart, ...], traffic: tuple[Traffic, ...], work: forecast.Work, **options: Any
) -> Forecast:
    """Returns the forecast of a config's step."""
    step = {"tokens": 0, **options}
    return forecast.forecast(config.hardware, config.plan, config.engine.precision, parts, traffic, work, **step)

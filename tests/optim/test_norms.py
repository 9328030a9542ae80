"""Norms of gradients: which are logged, and that they are those of whole gradients before clipping."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from runner import arrays
from runner.config.schema import OptimizerConfig
from runner.engine.optim import norms
from tests.optim.keras_runs import work

PATHS = ["d1/kernel", "d1/bias", "head"]
GRADIENTS = [np.float32([[3.0, 0.0]]), np.float32([4.0]), np.float32([12.0])]
_ADAM = {"name": "adam", "learning_rate": 0.001, "beta_1": 0.9, "beta_2": 0.999, "epsilon": 1e-7}
_LOGGED = {"gradient_norm": "layer", "clip": {"global_norm": 0.01}}
RUNS: list[dict[str, Any]] = [
    {"name": "adam", "optimizer": {**_ADAM, **_LOGGED}},
    {"name": "microbatches", "optimizer": {**_ADAM, **_LOGGED}, "keys": {"trainer.accumulate_steps": 2}},
]


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        (None, {}),
        ("global", {"gradient_norm": 13.0}),
        ("layer", {"gradient_norm": 13.0, "gradient_norm/d1": 5.0, "gradient_norm/head": 12.0}),
    ],
)
def test_norms_of_all_and_of_layers(kind: str | None, expected: dict[str, float]) -> None:
    config = OptimizerConfig(gradient_norm=kind)
    found = norms.values(config, PATHS, GRADIENTS, arrays.of(np))
    assert dict(zip(norms.names(config, PATHS), found, strict=True)) == expected


def check(found: Any) -> None:
    for result in found.values():
        by_path = result["expected norms"]
        assert result["norms"]["gradient_norm"] == pytest.approx(math.hypot(*by_path.values()), rel=1e-5)
        for layer in ("d1", "d2", "d3"):
            expected = math.hypot(by_path[f"{layer}/kernel"], by_path[f"{layer}/bias"])
            assert result["norms"][f"gradient_norm/{layer}"] == pytest.approx(expected, rel=1e-5)


@pytest.mark.slow
@pytest.mark.nightly
@pytest.mark.parametrize("engine", ["jax", "keras_dtensor"])
def test_on_a_mesh_they_are_those_of_whole_gradients_before_clipping(engine: str) -> None:
    check(work(RUNS, steps=2, engine=engine))

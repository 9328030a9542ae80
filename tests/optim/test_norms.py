"""Norms of gradients: which are logged. `tests/verify` compares them with those of one device."""

from __future__ import annotations

import numpy as np
import pytest

from runner import arrays
from runner.config.schema import OptimizerConfig
from runner.engine.optim import norms

PATHS = ["d1/kernel", "d1/bias", "head"]
GRADIENTS = [np.float32([[3.0, 0.0]]), np.float32([4.0]), np.float32([12.0])]


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

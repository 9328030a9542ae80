"""The operations of a step that a run records, of which the model FLOPs utilization is."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from runner.config.schema import ModelConfig
from runner.layout import Placement
from runner.model.gpt_options import TARGET
from runner.train.run import model_flops

BATCH, TOKENS, VOCABULARY = 4, 8, 10
SHAPES = {
    "block_0/attention_norm/scale": (16,),
    "block_0/attention/query/kernel": (16, 2, 8),
    "block_0/attention/output/kernel": (2, 8, 16),
    "block_0/experts/up/kernel": (4, 16, 24),
    "block_0/experts/gate/kernel": (4, 16, 24),
    "block_0/experts/down/kernel": (4, 24, 16),
    "head/kernel": (16, VOCABULARY),
}


@pytest.mark.parametrize("per_token", [2, 3, 4])
def test_a_mixture_counts_the_experts_that_a_token_uses(per_token: int) -> None:
    options: dict[str, Any] = {"experts": 4, "experts_per_token": per_token, "window": None}
    task: Any = SimpleNamespace(tokens=TOKENS, outputs=SimpleNamespace(units=VOCABULARY))
    placements = {path: Placement(path, shape, (None,) * len(shape), None) for path, shape in SHAPES.items()}
    engine: Any = SimpleNamespace(placements=placements, trainable=list(SHAPES))
    found = model_flops(ModelConfig(TARGET, options), BATCH, engine, task)
    parameters = 16 + 2 * 16 * 16 + 16 * VOCABULARY + per_token * 3 * 16 * 24
    assert found == BATCH * TOKENS * (6 * parameters + 12 * TOKENS * 16)

"""Small transformers, and how meshes split them."""

from __future__ import annotations

from typing import Any

from runner.config.schema import LayoutConfig, MeshConfig, ModelConfig, OptimizerConfig, RuleConfig, RunConfig
from runner.config.schema_task import TaskConfig
from runner.engine.base import HostBatches
from tests.configs import with_keys

BATCH, TOKENS, VOCABULARY, DIM = 16, 16, 64, 32
OPTIONS: dict[str, dict[str, Any]] = {
    "gpt2": {},
    "llama": {"positions": "rotary", "norm": "rms", "activation": "swiglu", "bias": False, "key_value_heads": 2},
}
_MEGATRON: list[tuple[str, list[str | None]]] = [
    (".*attention/(query|key|value)/kernel", [None, "model", None]),
    (".*attention/(query|key|value)/bias", ["model", None]),
    (".*attention/output/kernel", ["model", None, None]),
    (".*feedforward/(gate|up)/kernel", [None, "model"]),
    (".*feedforward/(gate|up)/bias", ["model"]),
    (".*feedforward/down/kernel", ["model", None]),
    ("token_embedding/embeddings", ["model", None]),
    ("head/kernel", [None, "model"]),
]
MEGATRON = [RuleConfig(match, spec, optional=True) for match, spec in _MEGATRON]
# The mesh's axes, and rules.
MESHES: dict[str, tuple[dict[str, int], list[RuleConfig]]] = {
    "single": ({"batch": 1}, []),
    "batch8": ({"batch": 8}, []),
    "batch4_model2": ({"batch": 4, "model": 2}, MEGATRON),
}


def config(engine: str, name: str, mesh: str) -> RunConfig:
    """Returns the config of a case on a mesh."""
    axes, rules = MESHES[mesh]
    optimizer = OptimizerConfig("adam", 0.01, beta_1=0.9, beta_2=0.99, epsilon=1e-3)  # which no rounding decides in
    made = RunConfig(mesh=MeshConfig(axes=dict(axes)), layout=LayoutConfig(rules=list(rules)), optimizer=optimizer)
    sizes = {"dim": DIM, "depth": 2, "heads": 4, "feedforward": 64, "fused_head": False}
    return with_keys(
        made,
        {
            "model": ModelConfig("runner.model.gpt.build", sizes | OPTIONS[name]),
            "engine.name": engine,
            "task": TaskConfig("custom", ["label"]),
            "dataset.batch_size": BATCH,
        },
    )


def first(batches: HostBatches) -> HostBatches:
    """Returns the first of several batches."""
    return HostBatches({name: array[:1] for name, array in batches.arrays.items()}, batches.weights[:1], 1)

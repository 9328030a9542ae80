"""Small transformers, their batches, and how they are split: what engines are compared on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from runner.config.schema import LayoutConfig, MeshConfig, ModelConfig, OptimizerConfig, RuleConfig, RunConfig
from runner.config.schema_task import TaskConfig
from runner.data.base import WEIGHT, Array, ArraySpec
from runner.engine.base import HostBatches
from runner.task.base import DataSpec
from runner.task.registry import make_task
from tests.configs import with_keys

STEPS, BATCH, TOKENS, VOCABULARY, DIM = 4, 16, 16, 64, 32
OPTIONS: dict[str, dict[str, Any]] = {
    "gpt2": {},
    "llama": {"positions": "rotary", "norm": "rms", "activation": "swiglu", "bias": False, "key_value_heads": 2},
    "gemma": {"positions": "rotary", "norm": "rms", "activation": "geglu", "head_dim": 16, "tied": True},
    "tied": {"tied": True, "max_length": 24},
    "one_key_head": {"key_value_heads": 1, "positions": "rotary"},
    "segments": {"segments": True, "activation": "swiglu", "norm": "rms"},
    # Windows that divide the row and that do not, more blocks than whole periods, and two bases of RoPE.
    "mistral": {"positions": "rotary", "norm": "rms", "activation": "swiglu", "bias": False, "window": 4},
    "local_and_global": {
        "positions": "rotary",
        "norm": "rms",
        "segments": True,
        "depth": 3,
        "window": 5,
        "global_every": 2,
        "local_wavelength": 100.0,
    },
    # Caps low enough to bend scores and logits.
    "capped": {"positions": "rotary", "key_value_heads": 2, "window": 6, "attention_cap": 2.0, "logits_cap": 3.0},
    "capped_segments": {"segments": True, "attention_cap": 2.0, "logits_cap": 3.0, "tied": True},
    "gemma2": {
        "positions": "rotary",
        "norm": "rms",
        "activation": "geglu",
        "head_dim": 16,
        "tied": True,
        "bias": False,
        "window": 5,
        "global_every": 2,
        "attention_cap": 2.0,
        "logits_cap": 3.0,
        "post_norm": True,
        "scaled_embeddings": True,
    },
    "gemma3": {
        "positions": "rotary",
        "norm": "rms",
        "activation": "geglu",
        "tied": True,
        "bias": False,
        "depth": 3,
        "window": 5,
        "global_every": 2,
        "local_wavelength": 100.0,
        "wavelength": 1000.0,
        "key_value_heads": 2,
        "post_norm": True,
        "query_key_norm": True,
        "scaled_embeddings": True,
    },
    "mixtral": {
        "positions": "rotary",
        "norm": "rms",
        "activation": "swiglu",
        "bias": False,
        "key_value_heads": 2,
        "feedforward": 16,
        "experts": 4,
        "router_loss": 0.5,
    },
    "dropout": {"dropout": 0.2, "tied": True, "positions": "rotary", "segments": True},
}
_MEGATRON: list[tuple[str, list[str | None]]] = [
    (".*attention/(query|key|value)/kernel", [None, "model", None]),
    (".*attention/(query|key|value)/bias", ["model", None]),
    (".*attention/output/kernel", ["model", None, None]),
    (".*feedforward/(gate|up)/kernel", [None, "model"]),
    (".*feedforward/(gate|up)/bias", ["model"]),
    (".*feedforward/down/kernel", ["model", None]),
    (".*experts/(gate|up)/kernel", [None, None, "model"]),
    (".*experts/down/kernel", [None, "model", None]),
    ("token_embedding/embeddings", ["model", None]),
    ("head/kernel", [None, "model"]),
]
# The second time for variables that a scan stacks.
MEGATRON = [
    RuleConfig(match, [*stacked, *spec], optional=True) for stacked in ([], [None]) for match, spec in _MEGATRON
]
FSDP = [RuleConfig(".*", shard="batch", min_elements=1)]
# Kernels of experts over all three axes at once.
_EXPERTS: list[tuple[str, list[str | None]]] = [
    (".*experts/(gate|up)/kernel", ["experts", "batch", "model"]),
    (".*experts/down/kernel", ["experts", "model", "batch"]),
    (".*experts/router/kernel", ["batch", None]),
]
EXPERTS = [RuleConfig(match, [*stacked, *spec], optional=True) for stacked in ([], [None]) for match, spec in _EXPERTS]
# mesh's axes; rules; axis that splits the tokens
MESHES: dict[str, tuple[dict[str, int], list[RuleConfig], str | None]] = {
    "single": ({"batch": 1}, [], None),
    "batch8": ({"batch": 8}, [], None),
    "batch8_fsdp": ({"batch": 8}, FSDP, None),
    "batch4_model2": ({"batch": 4, "model": 2}, MEGATRON, None),
    "batch2_model4": ({"batch": 2, "model": 4}, MEGATRON, None),
    "batch4_model2_both": (
        {"batch": 4, "model": 2},
        [RuleConfig("(token_embedding|position_embedding|head|norm)/.*", shard="batch", min_elements=1), *MEGATRON],
        None,
    ),
    "batch2_model2_experts2": ({"batch": 2, "model": 2, "experts": 2}, [*EXPERTS, *MEGATRON], None),
    "sequence8": ({"batch": 1, "sequence": 8}, [], "sequence"),
    "batch2_sequence4_fsdp": ({"batch": 2, "sequence": 4}, FSDP, "sequence"),
    "sequence2_model2": ({"batch": 1, "sequence": 2, "model": 2}, MEGATRON, "sequence"),
    "batch2_sequence2_model2": ({"batch": 2, "sequence": 2, "model": 2}, MEGATRON, "sequence"),
    # Queries over one axis, keys and values over another, as layout=auto proposes where the one can't split both.
    "model4_small2": (
        {"batch": 1, "model": 4, "small": 2},
        [
            RuleConfig(".*attention/(key|value)/kernel", [None, "small", None], optional=True),
            RuleConfig(".*attention/(key|value)/bias", ["small", None], optional=True),
            *MEGATRON,
        ],
        None,
    ),
    # Attention's heads over the axis of the tokens.
    "sequence4_of_heads": (
        {"batch": 2, "model": 4},
        [*MEGATRON, RuleConfig(".*", shard="model", min_elements=1)],
        "model",
    ),
}


def loss(ops: Any, outputs: Any, batch: Mapping[str, Any]) -> Any:
    """Returns each row's mean cross-entropy (B,)."""
    if isinstance(outputs, Mapping):
        cap = outputs.get("head_cap")
        outputs = outputs["hidden"] @ outputs["head"]
        if cap is not None:
            outputs = cap * ops.tanh(outputs / cap)
    hot = ops.one_hot(batch["label"], VOCABULARY)
    return -ops.sum(ops.sum(hot * ops.log_softmax(outputs), axis=-1), axis=-1) / TOKENS


def data(name: str) -> DataSpec:
    """Returns the specs of a case's arrays."""
    names = ("tokens", "label", *(["segments"] if OPTIONS[name].get("segments") else []))
    arrays = {each: ArraySpec((TOKENS,), "int32", ("sequence",)) for each in names}
    options = {"target": "tests.engine.gpt_cases.loss", "units": VOCABULARY}
    return DataSpec(arrays, make_task(TaskConfig("custom", ["label"], options=options), arrays))


def config(engine: str, name: str, mesh: str, **more: Any) -> RunConfig:
    """Returns the config of a case on a mesh."""
    axes, rules, sequence = MESHES[mesh]
    optimizer = OptimizerConfig("adam", 0.01, beta_1=0.9, beta_2=0.99, epsilon=1e-3)  # which no rounding decides in
    made = RunConfig(mesh=MeshConfig(axes=dict(axes)), layout=LayoutConfig(rules=list(rules)), optimizer=optimizer)
    if sequence:
        made = with_keys(made, {"layout.inputs": {each: ["batch", sequence] for each in data(name).arrays}})
    options = {key: value for key, value in OPTIONS[name].items() if key != "segments"}
    sizes = {"dim": DIM, "depth": 2, "heads": 4, "feedforward": 64, "fused_head": False}
    return with_keys(
        made,
        {
            "model": ModelConfig("runner.model.gpt.build", sizes | options | more),
            "engine.name": engine,
            "task": TaskConfig("custom", ["label"]),
            "dataset.batch_size": BATCH,
        },
    )


def batches(name: str) -> HostBatches:
    """Returns tokens of which the next often follows from the one before."""
    rng = np.random.default_rng(7)
    tokens = rng.integers(0, VOCABULARY, (STEPS, BATCH, TOKENS + 1)).astype(np.int32)
    arrays: dict[str, Array] = {"tokens": tokens[..., :-1], "label": (tokens[..., :-1] * 5 + 1) % VOCABULARY}
    if "segments" in data(name).arrays:
        arrays["segments"] = np.sort(rng.integers(1, 4, (STEPS, BATCH, TOKENS)), -1).astype(np.int32)
    weight = np.ones((STEPS, BATCH), np.float32)
    return HostBatches({**arrays, WEIGHT: weight}, weight, STEPS)


def first(batches: HostBatches) -> HostBatches:
    """Returns the first of several batches."""
    return HostBatches({name: array[:1] for name, array in batches.arrays.items()}, batches.weights[:1], 1)


def start(shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Array]:
    """Returns values that every engine begins with: large enough for attention not to be nearly uniform."""
    found = {}
    for path in sorted(shapes):
        rng = np.random.default_rng(sum(path.encode()))
        middle = 1.0 if path.endswith(("gamma", "scale")) else 0.0
        found[path] = (middle + 0.3 * rng.normal(size=shapes[path])).astype(np.float32)
    return found

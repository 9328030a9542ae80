"""Runs in a process of its own: KerasHub's GPT-2, Llama 3, Mistral, Mixtral and Gemma 2 and 3 beside `model=gpt`.

It gets their weights. Prints JSON: by model, the largest difference of the logits, and their largest size.
"""

from __future__ import annotations

import importlib
import json
import os
import re
from collections.abc import Mapping, Sequence
from typing import Any

os.environ["KERAS_BACKEND"] = "jax"

import keras
import numpy as np

from runner.data.base import ArraySpec
from runner.engine.jax.names import Names
from runner.model import gpt
from runner.task.base import OutputSpec

keras_hub: Any = importlib.import_module("keras_hub")
TOKENS, VOCABULARY, DIM, HEADS, DEPTH = 12, 40, 32, 4, 2
# KerasHub's paths -> ours, each tried in turn.
_PATHS = [
    (r".*position_embedding/embeddings", "position_embedding/embeddings"),
    (r".*reverse_embeddings", "head/kernel"),
    (r".*embeddings", "token_embedding/embeddings"),
    (r"transformer_layer_(\d)/self_attention/(query|key|value)/(\w+)", r"block_\1/attention/\2/\3"),
    (r"transformer_layer_(\d)/self_attention/attention_output/(\w+)", r"block_\1/attention/output/\2"),
    (r"transformer_layer_(\d)/self_attention_layer_?norm/(\w+)", r"block_\1/attention_norm/\2"),
    (r"transformer_layer_(\d)/feedforward_layer_?norm/(\w+)", r"block_\1/feedforward_norm/\2"),
    (r"transformer_layer_(\d)/feedforward_intermediate_dense/(\w+)", r"block_\1/feedforward/up/\2"),
    (r"transformer_layer_(\d)/feedforward_gate_dense/(\w+)", r"block_\1/feedforward/gate/\2"),
    (r"transformer_layer_(\d)/feedforward_output_dense/(\w+)", r"block_\1/feedforward/down/\2"),
    (r"transformer_layer_(\d)/.*/sparse_feedforward_gate_dense/kernel", r"block_\1/experts/router/kernel"),
    (r"transformer_layer_(\d)/.*/expert_feedforward_gate_dense", r"block_\1/experts/gate/kernel"),
    (r"transformer_layer_(\d)/.*/expert_feedforward_intermediate_dense", r"block_\1/experts/up/kernel"),
    (r"transformer_layer_(\d)/.*/expert_feedforward_output_dense", r"block_\1/experts/down/kernel"),
    (r"(?:sequence_output_)?layer_?norm/(\w+)", r"norm/\1"),
    (r"decoder_block_(\d)/attention/(query|key|value|query_norm|key_norm)/(\w+)", r"block_\1/attention/\2/\3"),
    (r"decoder_block_(\d)/attention/attention_output/(\w+)", r"block_\1/attention/output/\2"),
    (r"decoder_block_(\d)/pre_attention_norm/(\w+)", r"block_\1/attention_norm/\2"),
    (r"decoder_block_(\d)/post_attention_norm/(\w+)", r"block_\1/attention_post_norm/\2"),
    (r"decoder_block_(\d)/pre_ffw_norm/(\w+)", r"block_\1/feedforward_norm/\2"),
    (r"decoder_block_(\d)/post_ffw_norm/(\w+)", r"block_\1/feedforward_post_norm/\2"),
    (r"decoder_block_(\d)/ffw_gating/(\w+)", r"block_\1/feedforward/gate/\2"),
    (r"decoder_block_(\d)/ffw_gating_2/(\w+)", r"block_\1/feedforward/up/\2"),
    (r"decoder_block_(\d)/ffw_linear/(\w+)", r"block_\1/feedforward/down/\2"),
    (r"final_normalization/(\w+)", r"norm/\1"),
]


def ours(path: str) -> str:
    for match, own in _PATHS:
        found = re.fullmatch(match, path)
        if found:
            return found.expand(own)
    raise ValueError(f"no path for {path}")


def difference(backbone: Any, options: Mapping[str, Any]) -> Sequence[float]:
    rng = np.random.default_rng(3)
    for variable in backbone.weights:
        middle = 1.0 if variable.path.endswith(("gamma", "scale")) else 0.0
        variable.assign(middle + 0.3 * rng.normal(size=variable.shape))
    told = {"dim": DIM, "depth": DEPTH, "heads": HEADS, "feedforward": 64, "fused_head": False, **options}
    model = gpt.build(keras, {"tokens": ArraySpec((TOKENS,), "int32")}, OutputSpec(VOCABULARY), **told)
    is_gemma = type(backbone).__name__.startswith("Gemma")
    values = {}
    for variable in backbone.weights:
        value = np.asarray(variable.value)
        if is_gemma and variable.path.endswith("scale"):
            # Gemma's norms multiply by 1 + scale.
            value = value + 1.0
        if is_gemma and variable.path.endswith(("query/kernel", "key/kernel", "value/kernel")):
            # (heads, D, K) there.
            value = value.transpose(1, 0, 2)
        values[ours(variable.path)] = value
    variables = Names(model).variables
    if set(values) != set(variables):
        raise ValueError(f"{sorted(set(values) ^ set(variables))} are of one alone")
    for path, variable in variables.items():
        variable.assign(values[path])
    tokens = rng.integers(0, VOCABULARY, (3, TOKENS)).astype(np.int32)
    hidden = backbone({"token_ids": tokens, "padding_mask": np.ones_like(tokens)}, training=True)
    expected = np.asarray(backbone.token_embedding(hidden, reverse=True))
    apart = np.abs(np.asarray(model(tokens, training=True)) - expected).max()
    if len(model.losses) != len(backbone.losses):
        raise ValueError(f"{len(model.losses)} losses of layers, and KerasHub has {len(backbone.losses)}")
    for loss, other in zip(model.losses, backbone.losses, strict=True):
        # A loss of about 0.02 is compared as finely as the logits are.
        apart = max(apart, 100.0 * abs(float(loss) - float(other)))
    return float(apart), float(np.abs(expected).max())


def main() -> None:
    common = {"vocabulary_size": VOCABULARY, "num_layers": DEPTH, "hidden_dim": DIM, "intermediate_dim": 64}
    gpt2 = keras_hub.models.GPT2Backbone(**common, num_heads=HEADS, max_sequence_length=TOKENS, dropout=0.0)
    llama = keras_hub.models.Llama3Backbone(
        **common,
        num_query_heads=HEADS,
        num_key_value_heads=2,
        rope_max_wavelength=500000,
        layer_norm_epsilon=1e-5,
    )
    like_llama = {
        "positions": "rotary",
        "wavelength": 500000.0,
        "norm": "rms",
        "activation": "swiglu",
        "bias": False,
        "key_value_heads": 2,
    }
    found = {"gpt2": difference(gpt2, {"tied": True}), "llama": difference(llama, like_llama), **_with_windows()}
    print(json.dumps(found))


def _with_windows() -> dict[str, Sequence[float]]:
    """Compares models of windows and of experts; a window is shorter than a row."""
    grouped = {"vocabulary_size": VOCABULARY, "num_query_heads": HEADS, "num_key_value_heads": 2, "hidden_dim": DIM}
    mistral = keras_hub.models.MistralBackbone(**grouped, num_layers=DEPTH, intermediate_dim=64, sliding_window=5)
    mixtral = keras_hub.models.MixtralBackbone(
        **grouped, num_layers=DEPTH, intermediate_dim=24, num_experts=5, top_k=2, rope_max_wavelength=1e6
    )
    llama = {"positions": "rotary", "norm": "rms", "activation": "swiglu", "bias": False, "key_value_heads": 2}
    gemma = {**grouped, "head_dim": 16, "sliding_window_size": 5}
    gemma2 = keras_hub.models.GemmaBackbone(
        **gemma,
        num_layers=4,
        # Both halves of a gated feed-forward are counted there.
        intermediate_dim=128,
        attention_logit_soft_cap=2.0,
        final_logit_soft_cap=30.0,
        use_sliding_window_attention=True,
        use_post_ffw_norm=True,
        use_post_attention_norm=True,
    )
    gemma3 = keras_hub.models.Gemma3Backbone(
        **gemma,
        num_layers=7,
        intermediate_dim=64,
        image_size=16,
        use_query_key_norm=True,
        use_post_ffw_norm=True,
        use_post_attention_norm=True,
        use_sliding_window_attention=True,
        vision_encoder=None,
        global_rope_scaling_factor=1.0,
    )
    like_gemma = {
        **llama,
        "activation": "geglu",
        "head_dim": 16,
        "tied": True,
        "epsilon": 1e-6,
        "window": 5,
        "post_norm": True,
        "scaled_embeddings": True,
    }
    like_gemma2 = {**like_gemma, "depth": 4, "global_every": 2, "attention_cap": 2.0, "logits_cap": 30.0}
    like_gemma3 = {
        **like_gemma,
        "depth": 7,
        "global_every": 6,
        "wavelength": 1e6,
        "local_wavelength": 1e4,
        "query_key_norm": True,
    }
    return {
        "mistral": difference(mistral, {**llama, "window": 5, "epsilon": 1e-6}),
        "mixtral": difference(
            mixtral,
            {**llama, "epsilon": 1e-6, "wavelength": 1e6, "experts": 5, "feedforward": 24, "router_loss": 0.02},
        ),
        "gemma2": difference(gemma2, like_gemma2),
        "gemma3": difference(gemma3, like_gemma3),
    }


if __name__ == "__main__":
    main()

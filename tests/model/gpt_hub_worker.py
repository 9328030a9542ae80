"""Runs in a process of its own: KerasHub's GPT-2, Llama 3 and Mixtral beside `model=gpt`.

It gets their weights. Prints JSON: by model, the largest difference of the logits, and their largest size.
"""

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
    values = {ours(variable.path): np.asarray(variable.value) for variable in backbone.weights}
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
    grouped = {"num_query_heads": HEADS, "num_key_value_heads": 2}
    llama = keras_hub.models.Llama3Backbone(**common, **grouped, rope_max_wavelength=5e5, layer_norm_epsilon=1e-5)
    mixtral = keras_hub.models.MixtralBackbone(**common, **grouped, num_experts=5, top_k=2, rope_max_wavelength=1e6)
    like_llama = {"positions": "rotary", "norm": "rms", "activation": "swiglu", "bias": False, "key_value_heads": 2}
    like_mixtral = {**like_llama, "epsilon": 1e-6, "wavelength": 1e6, "experts": 5, "router_loss": 0.02}
    found = {
        "gpt2": difference(gpt2, {"tied": True}),
        "llama": difference(llama, {**like_llama, "wavelength": 5e5}),
        "mixtral": difference(mixtral, like_mixtral),
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main()

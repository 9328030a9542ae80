"""Configs of a few thousand parameters: common values by a key's name, and a class's own where they don't fit."""

import inspect
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from runner.model import keras_hub as hub

IMAGE, SEQUENCE, VOCABULARY = 32, 16, 64
COMMON: Mapping[str, Any] = {
    "num_layers": 2,
    "num_heads": 4,
    "num_query_heads": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "hidden_dim": 32,
    "hidden_size": 32,
    "embedding_dim": 32,
    "head_dim": 8,
    "head_size": 8,
    "intermediate_dim": 64,
    "mlp_dim": 64,
    "moe_intermediate_dim": 32,
    "shared_expert_intermediate_dim": 32,
    "shared_expert_intermediate_size": 32,
    "num_experts": 4,
    "top_k": 2,
    "patch_size": 8,
    "projection_dim": 32,
    "vocabulary_size": VOCABULARY,
    "vocab_size": VOCABULARY,
    "text_vocab_size": VOCABULARY,
    "image_shape": [IMAGE, IMAGE, 3],
    "image_size": IMAGE,
}
# Of those with a default: what would be large.
_MAY = ("max_sequence_length", "max_position_embeddings")
# Of inputs whose sizes a class leaves open, by the beginning of their names; others have `SEQUENCE`.
OPEN: Mapping[str, Mapping[str, int]] = {
    "MoonshineBackbone": {"encoder": 4096}
}  # sound, of which convolutions take windows
# Variables that a class makes and its output does not take, so that a run is told to leave them out.
UNUSED: Mapping[str, Sequence[str]] = {
    "BASNetBackbone": ["conv1_conv/kernel", "conv1_bn/gamma", "conv1_bn/beta"],
    "DepthAnythingBackbone": ["neck/fusion_stage_0/residual_layer1/.*", "layernorm/.*"],
    "XLNetBackbone": ["encoder_block_attn_mask_layer/mask_emb"],
}


def names() -> list[str]:
    """Returns the public names of all backbones; of classes with several names the first."""
    models = _models()
    seen: dict[type, str] = {}
    for name, kind in vars(models).items():
        is_backbone = isinstance(kind, type) and issubclass(kind, models.Backbone)
        if is_backbone and name not in ("Backbone", "FeaturePyramidBackbone"):
            seen.setdefault(kind, name)
    return sorted(seen.values())


def _models() -> Any:
    os.environ.setdefault("KERAS_BACKEND", "jax")
    hub.load()
    return hub.keras_hub.models


def config(name: str) -> dict[str, Any]:
    """Returns a backbone's keys.

    Raises:
      LookupError: of a key there is no value.
    """
    parameters = inspect.signature(getattr(_models(), name).__init__).parameters
    of_layers = ("self", "dtype", "name", "trainable", "args", "kwargs")
    keys = [key for key in parameters if key not in of_layers]
    required = [key for key in keys if parameters[key].default is inspect.Parameter.empty]
    own: dict[str, Any] = json.loads(Path(__file__).with_name("sizes.json").read_text()).get(name, {})
    found = {key: COMMON[key] for key in required if key in COMMON and key not in own}
    if "image_shape" in keys:
        found["image_shape"] = COMMON["image_shape"]
    found |= {key: SEQUENCE for key in _MAY if key in keys}
    found |= own
    missing = [key for key in required if key not in found]
    if missing:
        raise LookupError(f"no value for {', '.join(missing)}")
    return found

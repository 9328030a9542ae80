"""Configs of a few thousand parameters, of classes that common values by a key's name don't fit."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tests.backbones_of_hub import own_images
from tests.backbones_of_hub.own_images import ENCODER, IMAGE

SEQUENCE, VOCABULARY = 16, 64

_T5GEMMA = {
    f"{side}_{key}": value
    for side in ("encoder", "decoder")
    for key, value in {
        "hidden_dim": 32,
        "intermediate_dim": 64,
        "num_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "layer_types": ["full_attention", "full_attention"],
    }.items()
}

_LINEAR = {
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
    "layer_types": ["linear_attention", "full_attention"],
}

_VIT = {
    "image_shape": [IMAGE, IMAGE, 3],
    "patch_size": 8,
    "num_layers": 2,
    "num_heads": 4,
    "hidden_dim": 32,
    "mlp_dim": 64,
}

_CLIP_TEXT = {
    "vocabulary_size": VOCABULARY,
    "embedding_dim": 32,
    "hidden_dim": 32,
    "num_layers": 2,
    "num_heads": 4,
    "intermediate_dim": 64,
    "max_sequence_length": SEQUENCE,
}

_SIZES = {"num_heads": 4, "hidden_dim": 32, "intermediate_dim": 64, "num_layers": 2}


def _both(prefix: str) -> dict[str, Any]:
    return {
        "vision_encoder": {"class": f"{prefix}VisionEncoder", **ENCODER},
        "text_encoder": {"class": f"{prefix}TextEncoder", **_CLIP_TEXT},
    }


OWN: Mapping[str, Mapping[str, Any]] = {
    "BLIP2Backbone": {
        "vision_encoder": {
            "class": "BLIP2VisionEncoder",
            **_SIZES,
            "image_size": IMAGE,
            "patch_size": 8,
            "use_patch_bias": True,
            "use_class_token": True,
            "use_mha_bias": True,
            "use_mlp_bias": True,
            "dropout_rate": 0.0,
            "layer_norm_epsilon": 1e-6,
            "initializer_range": 0.02,
        },
        "qformer": {
            "class": "BLIP2QFormer",
            **_SIZES,
            "num_query_tokens": 4,
            "vision_dim": 32,
            "cross_attention_frequency": 2,
            "dropout": 0.0,
            "layer_norm_epsilon": 1e-6,
        },
        "language_model": {
            "class": "BLIP2CustomOPT",
            **_SIZES,
            "vocabulary_size": VOCABULARY,
            "num_query_tokens": 4,
            "dropout": 0.0,
            "max_sequence_length": 2 * SEQUENCE,  # the query's tokens count too
            "qformer_hidden_dim": 32,
        },
    },
    "CLIPBackbone": _both("CLIP"),
    "EdRecBackbone": {"num_layers_enc": 2, "num_layers_dec": 2},
    "FluxBackbone": {
        "input_channels": 16,
        "mlp_ratio": 2.0,
        "depth": 2,
        "depth_single_blocks": 2,
        "axes_dim": [4, 2, 2],
        "theta": 10000,
        "use_bias": True,
        "image_shape": [SEQUENCE, 16],
        "text_shape": [SEQUENCE, 16],
        "image_ids_shape": [SEQUENCE, 3],
        "text_ids_shape": [SEQUENCE, 3],
        "y_shape": [16],
    },
    "Gemma3nBackbone": {
        "text_hidden_size": 32,
        "num_hidden_layers": 2,
        "pad_token_id": 0,
        "intermediate_size": [64, 64],
        "hidden_activation": "gelu_approximate",
        "layer_types": ["full_attention", "sliding_attention"],
        "sliding_window": 8,
        "rope_theta": 10000.0,
        "max_position_embeddings": SEQUENCE,
        "vocab_size_per_layer_input": VOCABULARY,
        "hidden_size_per_layer_input": 8,
        "altup_num_inputs": 2,
        "laurel_rank": 4,
    },
    "MetaCLIP2Backbone": _both("MetaCLIP2"),
    "MoonshineBackbone": {
        "filter_dim": 32,
        "encoder_num_layers": 2,
        "decoder_num_layers": 2,
        "encoder_num_heads": 4,
        "decoder_num_heads": 4,
    },
    "PARSeqBackbone": {
        "image_encoder": {"class": "ViTBackbone", **_VIT, "use_class_token": False},
        "max_label_length": SEQUENCE,
        "decoder_hidden_dim": 32,
        "num_decoder_layers": 1,
        "num_decoder_heads": 4,
        "decoder_mlp_dim": 64,
    },
    "PaliGemmaBackbone": {
        "vit_patch_size": 8,
        "vit_num_heads": 4,
        "vit_hidden_dim": 32,
        "vit_num_layers": 2,
        "vit_intermediate_dim": 64,
    },
    "Qwen3_5Backbone": {**_LINEAR, "head_dim": 16},
    "Qwen3_5MoeBackbone": {**_LINEAR, "head_dim": 16},
    "RWKV7Backbone": {"gate_lora": 8, "mv_lora": 8, "aaa_lora": 8, "decay_lora": 8},
    "SAM3PromptableConceptBackbone": {
        "vision_encoder": {
            "class": "SAM3VisionEncoder",
            **_SIZES,
            "image_shape": [IMAGE, IMAGE, 3],
            "patch_size": 8,
            "fpn_hidden_dim": 32,
            "fpn_scale_factors": [4.0, 2.0, 1.0, 0.5],
            "pretrain_image_shape": [IMAGE, IMAGE, 3],
            "window_size": 2,
            "global_attn_indexes": [1],
        },
        "text_encoder": {"class": "SAM3TextEncoder", **_SIZES, "vocabulary_size": VOCABULARY, "embedding_dim": 32},
        "geometry_encoder": {"class": "SAM3GeometryEncoder", **_SIZES, "roi_size": 4},
        "detr_encoder": {"class": "SAM3DetrEncoder", **_SIZES},
        "detr_decoder": {
            "class": "SAM3DetrDecoder",
            **_SIZES,
            "image_shape": [IMAGE, IMAGE, 3],
            "patch_size": 8,
            "num_queries": 8,
        },
        "mask_decoder": {"class": "SAM3MaskDecoder", "num_upsampling_stages": 3, "hidden_dim": 32, "num_heads": 4},
    },
    "SigLIPBackbone": {
        "vision_encoder": {"class": "SigLIPVisionEncoder", **ENCODER},
        "text_encoder": {"class": "SigLIPTextEncoder", **_CLIP_TEXT, "projection_dim": 32},
    },
    "SmolLM3Backbone": {
        "attention_bias": False,
        "attention_dropout": 0.0,
        "rope_layer_enabled_list": [True, False],
        "layer_types": ["full_attention", "full_attention"],
        "mlp_bias": False,
        "layer_norm_epsilon": 1e-6,
        "max_position_embeddings": SEQUENCE,
        "rope_theta": 10000.0,
        "partial_rotary_factor": 1.0,
    },
    "T5GemmaBackbone": _T5GEMMA,
    "T5Gemma2Backbone": _T5GEMMA,
    "WhisperBackbone": {
        "num_mels": 8,
        "max_encoder_sequence_length": 2 * SEQUENCE,
        "max_decoder_sequence_length": SEQUENCE,
    },
}
OWN = {**OWN, **own_images.OWN, "SmolLMBackbone": OWN["SmolLM3Backbone"]}
# What no config can say.
WITHOUT: Mapping[str, str] = {
    "StableDiffusion3Backbone": "its vae is an object of VAEBackbone, which KerasHub has no public name for"
}

"""Configs of a few thousand parameters for classes that common values by a key's name don't fit."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

SEQUENCE, VOCABULARY, IMAGE = 16, 64, 32

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
_RESNET = {
    "class": "ResNetBackbone",
    "input_conv_filters": [64],
    "input_conv_kernel_sizes": [3],
    "stackwise_num_filters": [64, 64, 64],
    "stackwise_num_blocks": [1, 1, 1],
    "stackwise_num_strides": [1, 2, 2],
    "block_type": "basic_block",
    "image_shape": [IMAGE, IMAGE, 3],
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
_CLIP_IMAGE = {
    "patch_size": 8,
    "hidden_dim": 32,
    "num_layers": 2,
    "num_heads": 4,
    "intermediate_dim": 64,
    "image_shape": [IMAGE, IMAGE, 3],
}


def _both(prefix: str) -> dict[str, Any]:
    return {
        "vision_encoder": {"class": f"{prefix}VisionEncoder", **_CLIP_IMAGE},
        "text_encoder": {"class": f"{prefix}TextEncoder", **_CLIP_TEXT},
    }


_HGNET = {
    "depths": [1, 1],
    "embedding_size": 8,
    "hidden_sizes": [16, 16],
    "stem_channels": [3, 8, 8],
    "hidden_act": "relu",
    "use_learnable_affine_block": False,
    "stackwise_stage_filters": [[8, 8, 16, 1, 1, 3], [16, 8, 16, 1, 1, 3]],
    "apply_downsample": [False, True],
    "use_lightweight_conv_block": [False, False],
}
_SIZES = {"num_heads": 4, "hidden_dim": 32, "intermediate_dim": 64, "num_layers": 2}


OWN: Mapping[str, Mapping[str, Any]] = {
    "BASNetBackbone": {
        "image_encoder": {key: value for key, value in _RESNET.items() if key != "image_shape"}
        | {"stackwise_num_filters": [64, 64, 64, 64], "stackwise_num_blocks": [1, 1, 1, 1]}
        | {"stackwise_num_strides": [1, 2, 2, 2]},
        "num_classes": 1,
        "projection_filters": 64,
    },
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
    "CSPNetBackbone": {
        "stem_filters": 8,
        "stem_kernel_size": 3,
        "stem_strides": 1,
        "stackwise_depth": [1, 1],
        "stackwise_strides": [1, 2],
        "stackwise_num_filters": [8, 16],
        "block_type": "dark_block",
        "stage_type": "csp",
        "expand_ratio": [2.0, 1.0],
        "bottle_ratio": [0.5, 1.0],
        "block_ratio": [1.0, 0.5],
    },
    "DeepLabV3Backbone": {
        "image_encoder": _RESNET,
        "spatial_pyramid_pooling_key": "P4",
        "upsampling_size": 8,
        "dilation_rates": [1, 2, 3],
    },
    "DFineBackbone": {
        "backbone": {"class": "HGNetV2Backbone", **_HGNET, "out_features": ["stage1", "stage2"]}
        | {"image_shape": [IMAGE, IMAGE, 3]},
        "decoder_in_channels": [32, 32],
        "encoder_hidden_dim": 32,
        "num_labels": 4,
        "num_denoising": 0,
        "learn_initial_query": False,
        "num_queries": 10,
        "anchor_image_size": [IMAGE, IMAGE],
        "feat_strides": [4, 8],
        "num_feature_levels": 2,
        "hidden_dim": 32,
        "encoder_in_channels": [16, 16],
        "encode_proj_layers": [1],
        "num_attention_heads": 4,
        "encoder_ffn_dim": 64,
        "num_encoder_layers": 1,
        "hidden_expansion": 0.5,
        "depth_multiplier": 0.34,
        "eval_idx": -1,
        "num_decoder_layers": 2,
        "decoder_attention_heads": 4,
        "decoder_ffn_dim": 64,
        "decoder_n_points": [2, 2],
        "lqe_hidden_dim": 16,
        "num_lqe_layers": 2,
        "out_features": ["stage1", "stage2"],
    },
    "DenseNetBackbone": {"stackwise_num_repeats": [2, 2], "growth_rate": 8},
    "DepthAnythingBackbone": {
        "image_encoder": {"class": "DINOV2Backbone", **_CLIP_IMAGE, "use_mask_token": False}
        | {"position_embedding_shape": [IMAGE, IMAGE]},
        "reassemble_factors": [2, 1],
        "neck_hidden_dims": [16, 32],
        "fusion_hidden_dim": 16,
        "head_hidden_dim": 8,
        "head_in_index": -1,
        "feature_keys": ["stage1", "stage2"],
    },
    "EfficientNetBackbone": {
        "stackwise_kernel_sizes": [3, 3],
        "stackwise_num_repeats": [1, 1],
        "stackwise_input_filters": [8, 16],
        "stackwise_output_filters": [16, 16],
        "stackwise_expansion_ratios": [1, 4],
        "stackwise_squeeze_and_excite_ratios": [0.25, 0.25],
        "stackwise_strides": [1, 2],
        "stackwise_block_types": ["v1", "v1"],
        "stackwise_force_input_filters": [0, 0],
        "stackwise_nores_option": [False, False],
        "stackwise_width_coefficients": [1.0, 1.0],
        "stackwise_depth_coefficients": [1.0, 1.0],
        "num_features": 32,
        "input_shape": [IMAGE, IMAGE, 3],
    },
    "DINOV2Backbone": {"use_mask_token": False},  # which masked pre-training alone takes
    "DINOV3Backbone": {"use_mask_token": False},
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
    "HGNetV2Backbone": _HGNET,
    "MetaCLIP2Backbone": _both("MetaCLIP2"),
    "MiTBackbone": {
        "layerwise_depths": [1, 1],
        "layerwise_num_heads": [1, 2],
        "layerwise_sr_ratios": [2, 1],
        "max_drop_path_rate": 0.0,
        "layerwise_patch_sizes": [7, 3],
        "layerwise_strides": [4, 2],
        "hidden_dims": [16, 32],
    },
    "MobileNetBackbone": {
        "stackwise_expansion": [[8], [16]],
        "stackwise_num_blocks": [1, 1],
        "stackwise_num_filters": [[8], [16]],
        "stackwise_kernel_size": [[3], [3]],
        "stackwise_num_strides": [[2], [2]],
        "stackwise_se_ratio": [[0.25], [None]],
        "stackwise_activation": [["relu"], ["hard_swish"]],
        "stackwise_padding": [[1], [1]],
        "output_num_filters": 16,
        "depthwise_filters": 8,
        "depthwise_stride": 2,
        "depthwise_residual": False,
        "last_layer_filter": 32,
        "input_num_filters": 8,
    },
    "MobileNetV5Backbone": {
        "stackwise_block_types": [["er"], ["uir", "mqa"]],
        "stackwise_num_blocks": [1, 2],
        "stackwise_num_filters": [[8], [16, 16]],
        "stackwise_strides": [[2], [2, 1]],
        "stackwise_act_layers": [["relu"], ["relu", "relu"]],
        "stackwise_exp_ratios": [[2.0], [2.0, 2.0]],
        "stackwise_se_ratios": [[0.0], [0.0, 0.0]],
        "stackwise_dw_kernel_sizes": [[0], [3, 3]],
        "stackwise_dw_start_kernel_sizes": [[0], [0, 0]],
        "stackwise_dw_end_kernel_sizes": [[0], [0, 0]],
        "stackwise_exp_kernel_sizes": [[3], [0, 0]],
        "stackwise_pw_kernel_sizes": [[1], [0, 0]],
        "stackwise_num_heads": [[0], [0, 4]],
        "stackwise_key_dims": [[0], [0, 8]],
        "stackwise_value_dims": [[0], [0, 8]],
        "stackwise_kv_strides": [[0], [0, 1]],
        "stackwise_use_cpe": [[False], [False, False]],
        "use_msfa": False,
    },
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
    "ResNetBackbone": {key: value for key, value in _RESNET.items() if key != "class"},
    "RetinaNetBackbone": {
        "image_encoder": {**_RESNET, "stackwise_num_filters": [64, 64, 64, 64]}
        | {"stackwise_num_blocks": [1, 1, 1, 1], "stackwise_num_strides": [1, 2, 2, 2]},
        "min_level": 3,
        "max_level": 5,
        "use_p5": True,
    },
    "SAMBackbone": {
        "image_encoder": {
            "class": "ViTDetBackbone",
            "hidden_size": 32,
            "num_layers": 2,
            "intermediate_dim": 64,
            "num_heads": 4,
            "global_attention_layer_indices": [1],
            "patch_size": 8,
            "num_output_channels": 16,
            "window_size": 2,
            "image_shape": [IMAGE, IMAGE, 3],
        },
        "prompt_encoder": {
            "class": "SAMPromptEncoder",
            "hidden_size": 16,
            "image_embedding_size": [4, 4],
            "input_image_size": [IMAGE, IMAGE],
            "mask_in_channels": 16,
        },
        "mask_decoder": {
            "class": "SAMMaskDecoder",
            "num_layers": 2,
            "hidden_size": 16,
            "intermediate_dim": 32,
            "num_heads": 4,
            "embedding_dim": 16,
            "num_multimask_outputs": 3,
            "iou_head_depth": 3,
            "iou_head_hidden_dim": 16,
        },
    },
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
    "SegFormerBackbone": {
        "image_encoder": {
            "class": "MiTBackbone",
            "layerwise_depths": [1, 1, 1, 1],
            "num_layers": 4,
            "layerwise_num_heads": [1, 1, 2, 2],
            "layerwise_sr_ratios": [2, 1, 1, 1],
            "max_drop_path_rate": 0.0,
            "layerwise_patch_sizes": [7, 3, 3, 3],
            "layerwise_strides": [2, 2, 2, 2],  # 4 tokens are left: of one token attention learns nothing
            "hidden_dims": [8, 16, 24, 32],
            "image_shape": [IMAGE, IMAGE, 3],
        },
        "projection_filters": 16,
    },
    "SigLIPBackbone": {
        "vision_encoder": {"class": "SigLIPVisionEncoder", **_CLIP_IMAGE},
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
    "SwinTransformerBackbone": {
        "embed_dim": 16,
        "depths": [1, 1],
        "num_heads": [2, 4],
        "window_size": 4,
    },
    "T5GemmaBackbone": _T5GEMMA,
    "T5Gemma2Backbone": _T5GEMMA,
    "VGGBackbone": {"stackwise_num_repeats": [1, 1], "stackwise_num_filters": [8, 16]},
    "ViTDetBackbone": {"global_attention_layer_indices": [1], "window_size": 2, "num_output_channels": 16},
    "VideoPrismBackbone": {"num_frames": 2, "num_spatial_layers": 1, "num_temporal_layers": 1}
    | {"num_auxiliary_layers": 1},
    "WhisperBackbone": {
        "num_mels": 8,
        "max_encoder_sequence_length": 2 * SEQUENCE,
        "max_decoder_sequence_length": SEQUENCE,
    },
    "XceptionBackbone": {"stackwise_conv_filters": [[8, 8], [16, 16]], "stackwise_pooling": [True, False]},
}
OWN = {**OWN, "SmolLMBackbone": OWN["SmolLM3Backbone"]}
# What no config can say.
WITHOUT: Mapping[str, str] = {
    "StableDiffusion3Backbone": "its vae is an object of VAEBackbone, which KerasHub has no public name for"
}

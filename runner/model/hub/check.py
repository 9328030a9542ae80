"""Checks of `model=keras_hub` before anything is imported: the builder's own options, the preset, the engine."""

from __future__ import annotations

import importlib.util
from collections.abc import Collection, Mapping
from typing import Any

from runner.config.schema import DatasetConfig, ModelConfig, RunConfig
from runner.data import checks_text
from runner.errors import ConfigError, invalid
from runner.model.hub import options, presets

TARGET = "runner.model.keras_hub.build"

# Options of the builder itself; all others are options of KerasHub's class.
_BUILDER_OPTIONS = ("backbone", "task", "preset", "lora_rank", "fused_head", "config")

# KerasHub's tokenizer whose tokens are bytes, as those of dataset.tokenizer=bytes are.
_BYTE_TOKENIZER = "ByteTokenizer"

# The largest vocabulary of a preset without a tokenizer that may be one of bytes: 256, special tokens, and padding so
# that a mesh axis divides it. Vocabularies of other tokenizers have thousands of tokens.
_LARGEST_BYTE_VOCABULARY = 512


def check(config: RunConfig, keras_3_engines: Collection[str]) -> None:
    """Checks the group `model` if its builder is that of KerasHub.

    Raises:
      ConfigError: another engine, no KerasHub, an unknown class or option, or a folder that is not a preset.
    """
    if config.model.target != TARGET:
        return
    if config.engine.name not in keras_3_engines:
        problem = "does not train models of Keras 3, which model=keras_hub builds"
        raise invalid("engine", config.engine.name, problem=problem, fix="set engine=jax")
    if importlib.util.find_spec("keras_hub") is None:
        problem = "it needs keras_hub, which is not installed"
        raise invalid("model", "keras_hub", problem=problem, fix="pip install -e '.[hub]'")
    builder_options = config.model.options
    for key in ("preset", "backbone", "task"):
        _check_string(f"model.{key}", builder_options.get(key))
    _check_rank(builder_options.get("lora_rank"))
    fused_head = builder_options.get("fused_head", False)
    if not isinstance(fused_head, bool):
        raise invalid("model.fused_head", fused_head, problem="must be true or false", fix="remove model.fused_head")
    preset = builder_options.get("preset")
    _check_source(builder_options.get("backbone"), preset)
    _check_keys(config.model)
    if preset is not None and checks_text.is_text(config.dataset):
        _check_tokenizer(preset, config.dataset)


def _check_string(key: str, value: object) -> None:
    if value is not None and (not isinstance(value, str) or not value):
        raise invalid(key, value, problem="must be a string or null", fix=f"set {key} to a name, or remove it")


def _check_rank(rank: object) -> None:
    is_integer = isinstance(rank, int) and not isinstance(rank, bool)
    if rank is not None and (not is_integer or rank < 1):  # type: ignore[operator] # an integer
        raise invalid(
            "model.lora_rank", rank, problem="must be an integer of at least 1, or null", fix="set model.lora_rank=8"
        )


def _check_source(backbone: str | None, preset: str | None) -> None:
    if backbone is None and preset is None:
        raise ConfigError(
            "model.backbone: a class or a preset is required; set model.backbone=GPT2Backbone or "
            "model.preset=my_preset (a folder)"
        )
    if preset is not None:
        if backbone is not None:
            problem = "a preset determines its class, so the two exclude each other"
            raise invalid("model.backbone", backbone, problem=problem, fix="remove model.backbone or model.preset")
        presets.check(preset)


def _check_keys(config: ModelConfig) -> None:
    further_options = config.options.get("config") or {}
    if not isinstance(further_options, Mapping):
        raise invalid(
            "model.config", further_options, problem="must be a mapping", fix="write model.config={key: value}"
        )
    for key, value in further_options.items():
        if key in config.options and key not in _BUILDER_OPTIONS:
            problem = f"the key is set twice, model.{key} is {config.options[key]}"
            fix = f"remove model.{key} or model.config.{key}"
            raise invalid(f"model.config.{key}", value, problem=problem, fix=fix)


def _check_tokenizer(value: str, dataset: DatasetConfig) -> None:
    """Rejects tokens that are not those of a preset.

    Their ids would be looked up in the wrong embedding table.

    A preset that has a tokenizer needs that one. If it has none, a vocabulary that is too large for bytes shows that
    its tokens are not bytes. What `kaggle://...` and the like contain is known only after the download.
    """
    tokenizer = dataset.tokenizer or checks_text.BYTES
    if tokenizer not in (checks_text.BYTES, checks_text.BPE):
        return
    preset_size = None
    if presets.is_folder(value):
        preset = presets.opened(value)
        preset_tokenizer = preset.tokenizer
        preset_size = _vocabulary_size(preset.options)
    elif value.startswith(presets.SCHEMES):
        return
    else:
        # All presets on KerasHub's own list have a tokenizer.
        preset_tokenizer = value
    if preset_tokenizer == _BYTE_TOKENIZER and tokenizer == checks_text.BYTES:
        return
    byte_tokens = checks_text.bytes_vocabulary(dataset)
    if preset_tokenizer is None:
        is_too_large_for_bytes = isinstance(preset_size, int) and preset_size > _LARGEST_BYTE_VOCABULARY
        if byte_tokens is None or not is_too_large_for_bytes:
            return
    if byte_tokens is None:
        problem = f"it trains a new vocabulary, but the preset has the tokens of {preset_tokenizer}"
    elif isinstance(preset_size, int) and preset_size != byte_tokens:
        problem = f"it gives {byte_tokens} tokens, but the preset's vocabulary has {preset_size:,}"
    else:
        problem = f"its token ids are bytes, but the preset has the tokens of {preset_tokenizer}"
    fix = "use the preset's tokenizer: dataset.tokenizer=tokenizer.json (docs/keras_hub.md says how to write it)"
    raise invalid("dataset.tokenizer", tokenizer, problem=problem, fix=fix)


def _vocabulary_size(class_options: Mapping[str, Any]) -> int | None:
    """Returns the size of a preset's vocabulary; None if its options don't tell."""
    sizes = [class_options[key] for key in options.SIZES if isinstance(class_options.get(key), int)]
    return next(iter(sizes), None)

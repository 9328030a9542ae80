"""Checks of `model=keras_hub` before anything is imported: the builder's own options, the preset, the engine."""

from __future__ import annotations

import importlib.util

from runner.config.fields import Constraint
from runner.config.schema import DatasetConfig, ModelConfig
from runner.config.schema_data import BYTES
from runner.config.values import check_value
from runner.data import registry
from runner.errors import ConfigError, invalid
from runner.model.hub import options, presets

TARGET = "runner.model.keras_hub.build"

# KerasHub's tokenizer whose tokens are bytes, as those of dataset.tokenizer=bytes are.
_BYTE_TOKENIZER = "ByteTokenizer"

# The largest vocabulary of a preset without a tokenizer that may be one of bytes: 256, special tokens, and padding so
# that a mesh axis divides it. Vocabularies of other tokenizers have thousands of tokens.
_LARGEST_BYTE_VOCABULARY = 512


def check(config: ModelConfig, dataset: DatasetConfig, engine: str, *, on_jax: bool) -> None:
    """Checks the group `model` if its builder is that of KerasHub. Raises ConfigError if not."""
    if config.target != TARGET:
        return
    if not on_jax:
        problem = "does not train models of Keras 3, which model=keras_hub builds"
        raise invalid("engine", engine, problem=problem, fix="set engine=jax")
    if importlib.util.find_spec("keras_hub") is None:
        problem = "it needs keras_hub, which is not installed"
        raise invalid("model", "keras_hub", problem=problem, fix="pip install -e '.[hub]'")
    own = config.options
    check_value("model.lora_rank", own.get("lora_rank"), Constraint(at_least=1, example=8))
    _check_source(own.get("backbone"), own.get("preset"))
    if own.get("preset") is not None and registry.is_text(dataset):
        _check_tokenizer(own["preset"], dataset)


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


def _check_tokenizer(value: str, dataset: DatasetConfig) -> None:
    """Rejects tokens that are not those of a preset: their ids would be looked up in the wrong embedding table.

    A preset that has a tokenizer needs that one. If it has none, a vocabulary that is too large for bytes shows that
    its tokens are not bytes. What `kaggle://...` and the like contain is known only after the download.
    """
    tokenizer = dataset.tokenizer or BYTES
    if tokenizer != BYTES or value.startswith(presets.SCHEMES):
        return
    # All presets on KerasHub's own list have a tokenizer.
    own: str | None = value
    size = None
    if presets.is_folder(value):
        preset = presets.opened(value)
        own = preset.tokenizer
        size = next((preset.options[key] for key in options.SIZES if isinstance(preset.options.get(key), int)), None)
    if own == _BYTE_TOKENIZER or (own is None and (size is None or size <= _LARGEST_BYTE_VOCABULARY)):
        return
    problem = f"its tokens are not those of the preset ({own or f'{size:,} of them'})"
    fix = "use the preset's tokenizer: dataset.tokenizer=tokenizer.json"
    fix += ' (to write it, see "KerasHub models" in the docs)'
    raise invalid("dataset.tokenizer", tokenizer, problem=problem, fix=fix)

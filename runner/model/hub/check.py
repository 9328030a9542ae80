"""Checks of `model=keras_hub` before anything is imported: the class, its options, the preset, the engine."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from runner.config.schema import DatasetConfig, ModelConfig, RunConfig, TaskConfig
from runner.data import checks_text
from runner.errors import ConfigError, did_you_mean, invalid
from runner.model.hub import catalog, heads, options, presets
from runner.task import registry as tasks

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

    Args:
      config: its engines are checked.
      keras_3_engines: names of the engines that train models of Keras 3.

    Raises:
      ConfigError: another engine, no KerasHub, an unknown class or option, or a folder that is not a preset.
    """
    if config.model.target != TARGET:
        return
    for key, engine in (("engine", config.engine.name), ("against.engine", config.against.engine)):
        if engine is not None and engine not in keras_3_engines:
            fix = f"remove {key}"
            if key == "engine":
                fix = "set engine=jax"
            raise invalid(
                key, engine, problem="does not train models of Keras 3, which model=keras_hub builds", fix=fix
            )
    if not catalog.is_installed():
        raise invalid(
            "model",
            "keras_hub",
            problem="it needs keras_hub, which is not installed",
            fix="pip install -e '.[hub]'",
        )
    builder_options = config.model.options
    for key in ("preset", "backbone", "task"):
        _check_string(f"model.{key}", builder_options.get(key))
    _check_rank(builder_options.get("lora_rank"))
    _check_task(builder_options.get("task"))
    fused_head = builder_options.get("fused_head", False)
    if not isinstance(fused_head, bool):
        raise invalid("model.fused_head", fused_head, problem="must be true or false", fix="remove model.fused_head")
    backbone = _check_class(config.model, per_token=tasks.entry(config.task).predicts == "token")
    if checks_text.is_text(config.dataset):
        preset = builder_options.get("preset")
        if preset is not None:
            _check_tokenizer(preset, config.dataset)
        if backbone is not None:
            _check_text(backbone, config.model, config.dataset, config.task)


def _check_string(key: str, value: object) -> None:
    if value is not None and (not isinstance(value, str) or not value):
        raise invalid(key, value, problem="must be a string or null", fix=f"set {key} to a name, or remove it")


def _check_rank(rank: object) -> None:
    is_integer = isinstance(rank, int) and not isinstance(rank, bool)
    if rank is not None and (not is_integer or rank < 1):  # type: ignore[operator] # an integer
        raise invalid(
            "model.lora_rank", rank, problem="must be an integer of at least 1, or null", fix="set model.lora_rank=8"
        )


def _check_task(task: str | None) -> None:
    if task is None:
        return
    known = [*heads.KINDS]
    for kind in heads.KINDS:
        # The builder needs a head, and a backbone's class has none.
        if kind != heads.BACKBONE:
            known += catalog.of_kind(kind)
    if task not in known:
        raise invalid(
            "model.task",
            task,
            problem=f"must be one of {', '.join(heads.KINDS)}, the name of a KerasHub class, or null for the class "
            "that the run's task needs",
            fix=did_you_mean(task, known, "remove model.task"),
        )


def _check_class(config: ModelConfig, *, per_token: bool) -> str | None:
    """Checks the backbone's class and options.

    Returns:
      The name of the class; None if only a preset that is not downloaded yet has it.
    """
    builder_options = config.options
    name: str | None = builder_options.get("backbone")
    preset: str | None = builder_options.get("preset")
    backbones = catalog.of_kind("Backbone")
    if name is None and preset is None:
        raise ConfigError(
            f"model.backbone: a class or a preset is required; set model.backbone={backbones[0]} or "
            "model.preset=my_preset (a folder)"
        )
    if preset is not None:
        if name is not None:
            raise invalid(
                "model.backbone",
                name,
                problem="a preset determines its class, so the two exclude each other",
                fix="remove model.backbone or model.preset",
            )
        presets.check(preset)
        # Only a download tells the class of a preset that is not a folder.
        name = None
        if presets.is_folder(preset):
            name = presets.opened(preset).name
    elif name is not None and (name not in catalog.public() or not catalog.is_backbone(name)):
        raise invalid(
            "model.backbone",
            name,
            problem=f"must be a backbone of KerasHub {catalog.version()}, such as GPT2Backbone",
            fix=did_you_mean(name, backbones, "https://keras.io/keras_hub/api/models lists them"),
        )
    if name is not None:
        _check_class_options(name, config, per_token=per_token, has_preset=preset is not None)
    return name


def _check_tokenizer(value: str, dataset: DatasetConfig) -> None:
    """Rejects tokens that are not those of a preset.

    Their ids would be looked up in the wrong embedding table.

    A preset that has a tokenizer needs that one. If it has none, a vocabulary that is too large for bytes shows that
    its tokens are not bytes. What `kaggle://...` and the like contain is known only after the download.

    Args:
      value: the value of `model.preset`.
      dataset: of text.
    """
    tokenizer = dataset.tokenizer or checks_text.BYTES
    if tokenizer not in (checks_text.BYTES, checks_text.BPE):
        return
    preset_size = None
    if presets.is_folder(value):
        preset = presets.opened(value)
        preset_tokenizer = preset.tokenizer
        _, preset_size = _first_option(preset.options, options.SIZES)
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
    raise invalid(
        "dataset.tokenizer",
        tokenizer,
        problem=problem,
        fix="use the preset's tokenizer: dataset.tokenizer=tokenizer.json (docs/keras_hub.md says how to write it)",
    )


def _check_text(name: str, model: ModelConfig, dataset: DatasetConfig, task: TaskConfig) -> None:
    """Checks that a text's rows and tokens fit the backbone, as far as the config determines both.

    Args:
      name: the name of the backbone's class.
      model: its options have been checked.
      dataset: of text.
      task: the task of the run.
    """
    builder_options = model.options
    preset = builder_options.get("preset")
    preset_options: Mapping[str, Any] = {}
    if preset:
        preset_options = presets.opened(preset).options
    config_options = options.without_unset({**builder_options, **(builder_options.get("config") or {})})
    class_options = {**preset_options, **config_options}

    length = dataset.sequence_length or checks_text.LENGTH
    limit_and_default = catalog.position_limit(name)
    if limit_and_default is not None:
        limit_key, default = limit_and_default
        limit = class_options.get(limit_key, default)
        if isinstance(limit, int) and length > limit:
            fix = f"set dataset.sequence_length={limit}"
            # The positions of a preset are trained; their number can't change.
            if not preset:
                # Hydra adds a key that the config lacks only with a plus sign.
                plus = "+"
                if limit_key in builder_options:
                    plus = ""
                fix += f", or {plus}model.{limit_key}={length}"
            raise invalid(
                "dataset.sequence_length",
                length,
                problem=f"must be at most {limit}, the number of positions of {name}",
                fix=fix,
            )

    size_key, size = _first_option(class_options, options.SIZES)
    units = task.options.get("vocabulary")
    if units is None:
        units = checks_text.bytes_vocabulary(dataset)
    if tasks.entry(task).predicts == "token" and size is not None and units is not None:
        has_task_class = name.replace("Backbone", "CausalLM") in catalog.public()
        written_key = None
        if not preset:
            written_key = f"model.config.{size_key}"
            if size_key in builder_options:
                written_key = f"model.{size_key}"
        options.check_vocabulary(
            name,
            size,
            units,
            tied=has_task_class and builder_options.get("task") != heads.BACKBONE,
            preset=preset,
            key=written_key,
        )


def _first_option(class_options: Mapping[str, Any], keys: tuple[str, ...]) -> tuple[str | None, int | None]:
    """Returns the first of several keys whose value is an integer, and the value; None if there is none."""
    for key in keys:
        if isinstance(class_options.get(key), int):
            return key, class_options[key]
    return None, None


def _check_class_options(name: str, config: ModelConfig, *, per_token: bool, has_preset: bool) -> None:
    """Checks the options of the backbone's class.

    Args:
      name: the name of the class.
      config: the config of the model.
      per_token: the run's task is a language model.
      has_preset: a preset has all options; those in the config override them.
    """
    parameters = catalog.parameters(name)
    if parameters is None:
        return
    further_options = config.options.get("config") or {}
    if not isinstance(further_options, Mapping):
        raise invalid(
            "model.config", further_options, problem="must be a mapping", fix="write model.config={key: value}"
        )
    # Option of the class -> its key in the config.
    written_keys = {key: f"model.{key}" for key in config.options if key not in _BUILDER_OPTIONS}
    for key, value in further_options.items():
        if key in written_keys:
            raise invalid(
                f"model.config.{key}",
                value,
                problem=f"the key is set twice, {written_keys[key]} is {config.options[key]}",
                fix=f"remove {written_keys[key]} or model.config.{key}",
            )
        written_keys[key] = f"model.config.{key}"
    for key, written_key in written_keys.items():
        _check_known(key, written_key, name, parameters)
    class_options = {**config.options, **further_options}
    if not has_preset:
        from_data = [*options.IMAGE]
        if per_token:
            from_data += options.SIZES
        options.check_required(name, parameters, options.without_unset(class_options), from_data)
    for key, value in class_options.items():
        if key in written_keys:
            _check_described(written_keys[key], value)


def _check_known(key: str, written_key: str, name: str, parameters: catalog.Parameters) -> None:
    """Checks that a class has a parameter of this name."""
    if key not in parameters.names:
        raise ConfigError(
            f"{written_key}: no such key; keys of {name} are {', '.join(parameters.names)}; "
            f"{did_you_mean(key, parameters.names, f'remove {written_key}')}"
        )


def _check_described(key: str, value: object) -> None:
    """Checks the classes of objects that are described by a mapping, and their own options."""
    if isinstance(value, list):
        for index, item in enumerate(value):
            _check_described(f"{key}[{index}]", item)
    if not isinstance(value, Mapping):
        return
    for inner_key, inner_value in value.items():
        _check_described(f"{key}.{inner_key}", inner_value)
    if options.CLASS not in value:
        return
    name = value[options.CLASS]
    if not isinstance(name, str) or name not in catalog.public():
        raise invalid(
            f"{key}.{options.CLASS}",
            name,
            problem="must be a model or layer of KerasHub",
            fix=did_you_mean(str(name), catalog.public(), "https://keras.io/keras_hub/api lists them"),
        )
    parameters = catalog.parameters(name)
    if parameters is None:
        return
    for inner_key in value:
        if inner_key != options.CLASS:
            _check_known(str(inner_key), f"{key}.{inner_key}", name, parameters)
    options.check_required(name, parameters, value, key=key)

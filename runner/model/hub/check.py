"""What can be said of `model=keras_hub` before anything is imported: the class, its keys, the preset, the engine."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from runner.config.schema import ModelConfig, RunConfig
from runner.data import checks_text
from runner.errors import ConfigError, did_you_mean, invalid
from runner.model.hub import catalog, heads, options, presets

TARGET = "runner.model.keras_hub.build"
OWN = (
    "backbone",
    "task",
    "preset",
    "lora_rank",
    "fused_head",
    "config",
)  # options of the builder; all others are the class's keys
_PER_TOKEN = "language_model"
_OF_BYTES = "ByteTokenizer"  # KerasHub's, whose tokens are bytes
_PADDED_BYTES = 512  # the most tokens of a vocabulary of bytes that was padded for a mesh axis to divide it


def check(config: RunConfig, keras_3_engines: Collection[str]) -> None:
    """Checks the group `model` where it is KerasHub's.

    Args:
      config: its engines are checked.
      keras_3_engines: names of the engines that train models of Keras 3.

    Raises:
      ConfigError: another engine, no KerasHub, an unknown class or key, or a folder that is no preset.
    """
    if config.model.target != TARGET:
        return
    for key, engine in (("engine.name", config.engine.name), ("against.engine", config.against.engine)):
        if engine is not None and engine not in keras_3_engines:
            fix = "set engine=jax" if key == "engine.name" else f"leave {key} out"
            raise invalid(key, engine, problem="KerasHub's models are Keras 3's, which engine=jax trains", fix=fix)
    if not catalog.is_installed():
        raise invalid(
            "model",
            "keras_hub",
            problem="it needs keras_hub, which is not installed",
            fix="pip install -e '.[hub]'",
        )
    held = config.model.options
    _check_word("preset", held)
    _check_word("backbone", held)
    _check_word("task", held)
    _check_rank(held.get("lora_rank"))
    _check_task(held.get("task"))
    fused = held.get("fused_head", False)
    if not isinstance(fused, bool):
        raise invalid("model.fused_head", fused, problem="true or false", fix="leave it out")
    name = _check_class(config.model, config.task.name == _PER_TOKEN)
    if checks_text.is_text(config.dataset):
        if held.get("preset") is not None:
            _check_tokenizer(held["preset"], config)
        if name is not None:
            _check_text(name, config)


def _check_word(key: str, held: Mapping[str, Any]) -> None:
    value = held.get(key)
    if value is not None and (not isinstance(value, str) or not value):
        raise invalid(f"model.{key}", value, problem="a word, or null", fix=f"set model.{key} to one")


def _check_rank(rank: object) -> None:
    if rank is not None and (not isinstance(rank, int) or isinstance(rank, bool) or rank < 1):
        raise invalid("model.lora_rank", rank, problem="a whole number of at least 1, or null", fix="set it to 8")


def _check_task(task: str | None) -> None:
    known = [*heads.KINDS, *(name for kind in heads.KINDS for name in catalog.of_kind(kind) if kind != "Backbone")]
    if task is not None and task not in known:
        raise invalid(
            "model.task",
            task,
            problem=f"{', '.join(heads.KINDS)}, the name of one of KerasHub's classes, or null for what the run's "
            "task needs",
            fix=did_you_mean(task, known, "leave it out"),
        )


def _check_class(config: ModelConfig, per_token: bool) -> str | None:
    """Checks the class and its keys, and returns its name; None where only its preset, which is fetched, tells."""
    held = config.options
    backbones = catalog.of_kind("Backbone")
    name = held.get("backbone")
    preset = held.get("preset")
    if name is None and preset is None:
        raise ConfigError(
            "model.backbone: it has no value, and model.preset neither; name a class, as "
            f"model.backbone={backbones[0]}, or a folder, as model.preset=my_preset"
        )
    if preset is not None:
        if name is not None:
            raise invalid(
                "model.backbone",
                name,
                problem="the preset names its own class, so that the two exclude each other",
                fix="leave out one of model.backbone and model.preset",
            )
        presets.check(preset)
        name = presets.opened(preset).name if presets.is_folder(preset) else None
    elif name is not None and not (name in catalog.public() and catalog.is_a(name, "Backbone")):
        raise invalid(
            "model.backbone",
            name,
            problem=f"a backbone of KerasHub {catalog.version()}, as GPT2Backbone",
            fix=did_you_mean(name, backbones, "https://keras.io/keras_hub/api/models lists them"),
        )
    if name is not None:
        _check_keys(name, config, per_token, of_preset=preset is not None)
    return name


def _check_tokenizer(value: str, config: RunConfig) -> None:
    """Refuses tokens that are not those of a preset: their numbers would be looked up in a table of others.

    A preset that has a tokenizer wants that one. Of one without, a vocabulary larger than a padded one of bytes
    tells that bytes are not it. What `kaggle://...` and the like have is known when they are fetched.
    """
    tokenizer = config.dataset.tokenizer or checks_text.BYTES
    if tokenizer not in (checks_text.BYTES, checks_text.BPE):
        return
    size = None
    if presets.is_folder(value):
        preset = presets.opened(value)
        own = preset.tokenizer
        size = next((preset.config["config"][key] for key in options.SIZES if key in preset.config["config"]), None)
    elif value.startswith(presets.SCHEMES):
        return
    else:
        own = value  # a preset of KerasHub's own, which all have theirs
    count = checks_text.bytes_vocabulary(config.dataset)
    if own == _OF_BYTES and tokenizer == checks_text.BYTES:
        return
    if own is None and (count is None or not isinstance(size, int) or size <= _PADDED_BYTES):
        return
    if count is None:
        allowed = f"it trains a vocabulary of its own, and the preset knows the tokens of {own}"
    elif isinstance(size, int) and size != count:
        allowed = f"it gives {count} tokens, but the preset's vocabulary has {size:,}"
    else:
        allowed = f"it gives the numbers of bytes, but the preset knows the tokens of {own}"
    raise invalid(
        "dataset.tokenizer",
        tokenizer,
        problem=allowed,
        fix="use the preset's tokenizer: dataset.tokenizer=tokenizer.json (docs/keras_hub.md says how to write it)",
    )


def _check_text(name: str, config: RunConfig) -> None:
    """Checks that a text's rows and tokens fit the backbone, as far as the config tells of both."""
    held = config.model.options
    preset = config.model.options.get("preset")
    own = options.given({**held, **(held.get("config") or {})})
    keys = {**(presets.opened(preset).config["config"] if preset else {}), **own}
    length = config.dataset.sequence_length or checks_text.LENGTH
    positions = catalog.position_limit(name)
    limit = None if positions is None else keys.get(positions[0], positions[1])
    if positions is not None and isinstance(limit, int) and length > limit:
        fix = f"set dataset.sequence_length={limit}"
        if not preset:
            fix += f", or {'' if positions[0] in held else '+'}model.{positions[0]}={length}"
        raise invalid(
            "dataset.sequence_length", length, problem=f"at most {limit}, the places that {name} knows", fix=fix
        )
    size_key = next((key for key in options.SIZES if isinstance(keys.get(key), int)), None)
    size = None if size_key is None else keys[size_key]
    given = config.task.options.get("vocabulary")
    units = given if given is not None else checks_text.bytes_vocabulary(config.dataset)
    if config.task.name == _PER_TOKEN and size is not None and units is not None:
        tied = name.replace("Backbone", "CausalLM") in catalog.public() and held.get("task") != heads.BACKBONE
        said = None if preset else f"model.{size_key}" if size_key in held else f"model.config.{size_key}"
        options.check_vocabulary(name, size, units, tied=tied, key=said)


def _check_keys(name: str, config: ModelConfig, per_token: bool, *, of_preset: bool) -> None:
    taken = catalog.taken(name)
    if taken is None:
        return
    further = config.options.get("config") or {}
    if not isinstance(further, Mapping):
        raise invalid("model.config", further, problem="keys of the class", fix="write model.config={key: value}")
    given = {key: f"model.{key}" for key in config.options if key not in OWN}
    for key in further:
        if key in given:
            allowed = f"a key is given once, and {given[key]} is {config.options[key]}"
            raise invalid(f"model.config.{key}", further[key], problem=allowed, fix="leave out one of the two")
        given[key] = f"model.config.{key}"
    for key, written in given.items():
        if key not in taken.known:
            raise ConfigError(
                f"{written}: no such key; keys of {name} are {', '.join(taken.known)}; "
                f"{did_you_mean(key, taken.known, 'leave it out')}"
            )
    if not of_preset:
        told = [*options.IMAGE, *(options.SIZES if per_token else ())]
        options.check_needed(name, taken, options.given({**config.options, **further}), told)
    for key, value in {**config.options, **further}.items():
        if key in given:
            _check_described(given[key], value)


def _check_described(key: str, value: object) -> None:
    """Checks the classes of objects that are described by keys of their own."""
    if isinstance(value, list):
        for place, each in enumerate(value):
            _check_described(f"{key}[{place}]", each)
    if not isinstance(value, Mapping):
        return
    for inner, each in value.items():
        _check_described(f"{key}.{inner}", each)
    if options.CLASS not in value:
        return
    name = value[options.CLASS]
    if not isinstance(name, str) or name not in catalog.public():
        raise invalid(
            f"{key}.{options.CLASS}",
            name,
            problem="a model or layer of KerasHub",
            fix=did_you_mean(str(name), catalog.public(), "https://keras.io/keras_hub/api lists them"),
        )
    taken = catalog.taken(name)
    if taken is None:
        return
    for inner in value:
        if inner != options.CLASS and inner not in taken.known:
            raise ConfigError(
                f"{key}.{inner}: no such key; keys of {name} are {', '.join(taken.known)}; "
                f"{did_you_mean(str(inner), taken.known, 'leave it out')}"
            )
    options.check_needed(name, taken, value, key=key)

"""Checks between keys of `dataset`, before a data library is imported; each raises the first problem."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from runner.config import import_path, values
from runner.config.build import build
from runner.config.fields import Constraint
from runner.config.locations import path_problem
from runner.config.schema_augment import STEPS, StepOptions
from runner.config.schema_data import BYTES, AugmentConfig, DatasetConfig
from runner.config.values import changed
from runner.data import registry, splits
from runner.data.parts import in_part, parts_of
from runner.errors import did_you_mean, invalid

# Keys whose values are those of the parts of a mixture, and the values that they may have in the mixture itself.
_KEYS_OF_PARTS = {
    "train": ("train",),
    "validation": (None,),
    "test": (None, "test"),
    "holdout": (None, 0.0),
    "image_size": (None,),
}
# Keys that have another name in YAML.
_YAML_KEYS = {"target": "_target_"}


def check(config: DatasetConfig, *, recorded: bool = False) -> None:
    """Checks the keys of the group against each other, and that its files exist.

    A run that is resumed or read (`recorded`) has its tokenizer.
    """
    if not config.name.strip():
        problem = "needs the name of a TFDS builder"
        raise invalid("dataset.name", config.name, problem=problem, fix="set dataset.name=emnist/letters")
    _check_splits(config)
    _check_keys(config)
    if registry.is_text(config) and config.tokenizer not in (BYTES, None):
        _check_tokenizer(config.tokenizer, recorded=recorded)
    # After the checks of keys alone, because it looks at files.
    check_source = registry.entry(config).check
    if check_source is not None:
        check_source(config)
    if "parts" in registry.entry(config).keys:
        _check_mixture(config, recorded=recorded)
    check_augment(config)


def _check_tokenizer(tokenizer: str, *, recorded: bool) -> None:
    key = "dataset.tokenizer"
    values.check_value(key, tokenizer, Constraint(test=path_problem, example="tokenizer.json"))
    # Only the suffix distinguishes a path from a misspelled kind, which gets a suggestion.
    is_file_name = tokenizer.endswith(".json")
    if not is_file_name or not (recorded or Path(tokenizer).expanduser().is_file()):
        problem = f"must be {BYTES} or the path of a tokenizer.json"
        if is_file_name:
            problem = "the file does not exist"
        raise invalid(key, tokenizer, problem=problem, fix=did_you_mean(tokenizer, (BYTES,), f"set {key}=bytes"))
    # The library is looked for and not imported, because a config error must come before any slow import.
    if importlib.util.find_spec("tokenizers") is None:
        problem = "needs the library tokenizers, which is not installed"
        raise invalid(key, tokenizer, problem=problem, fix="pip install tokenizers, or set dataset.tokenizer=bytes")


def _check_mixture(config: DatasetConfig, *, recorded: bool) -> None:
    if len(config.parts) < 2:
        problem = "needs two datasets or more"
        fix = "set dataset.parts='[{name: arrays, path: a.npz, weight: 0.7}, {name: arrays, path: b.npz}]'"
        raise invalid("dataset.parts", config.parts, problem=problem, fix=fix)
    for key, allowed in _KEYS_OF_PARTS.items():
        value = getattr(config, key)
        if value not in allowed:
            problem = "can't be set for a mixture, whose splits are those of its parts"
            fix = f"remove it, and set {key} in the entries of dataset.parts"
            if key == "holdout":
                fix = "remove it, and set train and validation in the entries of dataset.parts"
            raise invalid(f"dataset.{key}", value, problem=problem, fix=fix)
    for part in parts_of(config):
        with in_part(part.key):
            check(part.config, recorded=recorded)


def _check_splits(config: DatasetConfig) -> None:
    for key in ("train", "validation", "test"):
        expression = getattr(config, key)
        if expression is not None:
            splits.parse_key(key, expression)
    if config.holdout and config.validation is not None:
        problem = f"must be 0 with a validation split, but dataset.validation={config.validation}"
        fix = "remove dataset.holdout or dataset.validation"
        raise invalid("dataset.holdout", config.holdout, problem=problem, fix=fix)


def _check_keys(config: DatasetConfig) -> None:
    """Rejects keys that only other sources have."""
    keys = registry.entry(config).keys
    for name, source in registry.SOURCES.items():
        if not source.is_users_data:
            continue
        for key in changed(config, source.keys):
            yaml_key = _YAML_KEYS.get(key, key)
            if key not in keys:
                problem = f"dataset={config.name} has no such key"
                fix = f"remove dataset.{yaml_key}, or set dataset={name}"
                raise invalid(f"dataset.{yaml_key}", getattr(config, key), problem=problem, fix=fix)


def check_augment(config: DatasetConfig) -> None:
    """Checks the augmentation steps."""
    for index, step in enumerate(config.augment):
        key = f"dataset.augment[{index}]"
        if bool(step.name) == bool(step.target):
            problem = f"must have either a name ({', '.join(STEPS)}) or a _target_"
            raise invalid(key, step.name or "{}", problem=problem, fix="set dataset.augment=[{name: flip}]")
        if step.target:
            import_path.check(f"{key}._target_", step.target)
        else:
            values.check_name(f"{key}.name", step.name, STEPS)
            values.check(build(STEPS[step.name], step.options, key), key)


def options(step: AugmentConfig) -> StepOptions:
    """Returns the typed options of a built-in step that `check` has passed."""
    return build(STEPS[step.name], step.options, step.name)

"""Checks between keys of `dataset`, before a data library is imported; each raises the first problem."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from runner.config import values
from runner.config.build import build
from runner.config.schema_augment import STEPS, StepOptions
from runner.config.schema_data import AugmentConfig, DatasetConfig
from runner.config.values import changed
from runner.data import checks_text, registry
from runner.data.parts import in_part, parts_of
from runner.errors import invalid
from runner.host import import_path
from runner.host.late import late

if TYPE_CHECKING:
    from runner.data import splits
else:
    # It imports NumPy, which `--help` and most config errors do without.
    splits = late("runner.data.splits")

# Keys whose values are those of the parts of a mixture, and the values that they may have in the mixture itself.
_KEYS_OF_PARTS = {
    "train": ("train",),
    "validation": (None,),
    "test": (None, "test"),
    "holdout": (0.0,),
    "image_size": (None,),
}
# Keys that have another name in YAML.
_YAML_KEYS = {"target": "_target_"}


def check(config: DatasetConfig, *, recorded: bool = False) -> None:
    """Checks the keys of the group against each other, and that its files exist.

    A run that is resumed or read (`recorded`) has its tokenizer.
    """
    if not config.name.strip():
        raise invalid(
            "dataset.name",
            config.name,
            problem="needs the name of a TFDS builder",
            fix="set dataset.name=emnist/letters",
        )
    _check_splits(config)
    _check_keys(config)
    checks_text.check(config, recorded=recorded)
    # After the checks of keys alone, because it looks at files.
    check_source = registry.entry(config).check
    if check_source is not None:
        check_source(config)
    if "parts" in registry.entry(config).keys:
        _check_mixture(config, recorded=recorded)
    if config.pad_length is not None and not config.pad:
        problem = "needs dataset.pad, whose arrays it applies to"
        fix = "set dataset.pad={tokens:0}, or remove it"
        raise invalid("dataset.pad_length", config.pad_length, problem=problem, fix=fix)
    if not recorded:
        _check_standardized_sequences(config)
    check_augment(config)


def _check_mixture(config: DatasetConfig, *, recorded: bool) -> None:
    """Checks the keys of a mixture, and then each part as a dataset."""
    if len(config.parts) < 2:
        raise invalid(
            "dataset.parts",
            config.parts,
            problem="needs two datasets or more",
            fix="set dataset.parts='[{name: arrays, path: a.npz, weight: 0.7}, {name: arrays, path: b.npz}]'",
        )
    for key, allowed in _KEYS_OF_PARTS.items():
        value = getattr(config, key)
        if value not in allowed:
            problem = "can't be set for a mixture, whose splits are those of its parts"
            fix = f"remove it, and set {key} in the entries of dataset.parts"
            if key == "holdout":
                fix = "remove it, and set train and validation in the entries of dataset.parts"
            raise invalid(f"dataset.{key}", value, problem=problem, fix=fix)
    for part in parts_of(config):
        in_part(part.key, partial(check, part.config, recorded=recorded))


def _check_standardized_sequences(config: DatasetConfig) -> None:
    if not isinstance(config.standardize, list):
        return
    for name in config.standardize:
        if name in (config.pad or {}):
            problem = f"must not name {name}, whose padding by dataset.pad would count in its mean"
            raise invalid("dataset.standardize", config.standardize, problem=problem, fix=f"remove {name}")


def _check_splits(config: DatasetConfig) -> None:
    for key in ("train", "validation", "test"):
        expression = getattr(config, key)
        try:
            if expression is not None:
                splits.parse_split(expression)
        except ValueError as error:
            fix = splits.fix_of(key)
            raise invalid(f"dataset.{key}", expression, problem=str(error), fix=fix) from error
    if config.holdout and config.validation is not None:
        raise invalid(
            "dataset.holdout",
            config.holdout,
            problem=f"must be 0 with a validation split, but dataset.validation={config.validation}",
            fix="remove dataset.holdout or dataset.validation",
        )


def _check_keys(config: DatasetConfig) -> None:
    """Rejects keys that only other sources have."""
    keys = registry.entry(config).keys
    for name, source in registry.SOURCES.items():
        if not source.is_users_data:
            continue
        for key in changed(config, source.keys):
            yaml_key = _YAML_KEYS.get(key, key)
            if key not in keys:
                raise invalid(
                    f"dataset.{yaml_key}",
                    getattr(config, key),
                    problem=f"dataset={config.name} has no such key",
                    fix=f"remove dataset.{yaml_key}, or set dataset={name}",
                )


def check_augment(config: DatasetConfig) -> None:
    """Checks the augmentation steps."""
    for index, step in enumerate(config.augment):
        key = f"dataset.augment[{index}]"
        if bool(step.name) == bool(step.target):
            raise invalid(
                key,
                step.name or "{}",
                problem=f"must have either a name ({', '.join(STEPS)}) or a _target_",
                fix="set dataset.augment=[{name: flip}]",
            )
        if step.target:
            import_path.check(f"{key}._target_", step.target)
        else:
            values.check_name(f"{key}.name", step.name, STEPS)
            values.check(build(STEPS[step.name], step.options, key), key)


def options(step: AugmentConfig) -> StepOptions:
    """Returns the typed options of a built-in step that `check` has passed."""
    return build(STEPS[step.name], step.options, step.name)

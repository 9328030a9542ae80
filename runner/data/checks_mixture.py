"""Checks of the keys of a mixture and of its parts; see `runner.data.checks`."""

from __future__ import annotations

from collections.abc import Callable

from runner.config.schema_data import DatasetConfig
from runner.data.parts import in_part, parts_of
from runner.errors import invalid

# Keys whose values are those of the parts, and what they are in a mixture.
_OF_PARTS = {"train": "train", "validation": None, "test": (None, "test"), "holdout": 0.0, "image_size": None}


def check(config: DatasetConfig, check_part: Callable[[DatasetConfig], None]) -> None:
    """Checks a mixture.

    Args:
      config: whose single values are checked.
      check_part: checks the config of a part as that of a dataset.

    Raises:
      ConfigError: the first problem.
    """
    if len(config.parts) < 2:
        raise invalid(
            "dataset.parts",
            config.parts,
            problem="needs two datasets or more",
            fix="set dataset.parts='[{name: arrays, path: a.npz, weight: 0.7}, {name: arrays, path: b.npz}]'",
        )
    for key, values in _OF_PARTS.items():
        value = getattr(config, key)
        allowed = values if isinstance(values, tuple) else (values,)
        if value not in allowed:
            problem = "can't be set for a mixture, whose splits are those of its parts"
            fix = f"remove it, and set {key} in the entries of dataset.parts"
            if key == "holdout":
                fix = "remove it, and set train and validation in the entries of dataset.parts"
            raise invalid(f"dataset.{key}", value, problem=problem, fix=fix)
    for part in parts_of(config):
        in_part(part.key, lambda part=part: check_part(part.config))  # type: ignore[misc]

"""The parts of a mixture: their configs and weights, from `dataset.parts`. Imports no NumPy."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from runner.config import options
from runner.config.build import build, fields_of, unknown_key
from runner.config.fields import as_text
from runner.config.schema_data import DatasetConfig
from runner.config.values import check as check_values
from runner.errors import ConfigError, invalid

_KEY = "dataset.parts"
_WEIGHT = "weight"
_TARGET = "_target_"
# Keys that a part may have, apart from its weight. All others are of the whole mixture: its batches, order,
# augmentation, standardization and workers.
_KEYS = (
    *("name", "path", "features", "train", "validation", "test", "data_dir", "download"),
    *("column", "tokenizer", "end_token", "sequence_length", "documents"),
    *("image_size", "channels"),
)


@dataclass(frozen=True)
class Part:
    """One dataset of a mixture: its key in the config, its name for messages, its weight and its own config."""

    key: str
    name: str
    weight: float
    config: DatasetConfig


def parts_of(config: DatasetConfig) -> list[Part]:
    """Returns the parts of a mixture, whose single values are checked."""
    parts = []
    for index, content in enumerate(config.parts):
        parts.append(_part(f"{_KEY}[{index}]", content, config))
    return parts


def _part(key: str, content: Mapping[str, object], mixture: DatasetConfig) -> Part:
    own = dict(content)
    weight = own.pop(_WEIGHT, 1.0)
    is_number = isinstance(weight, int | float) and not isinstance(weight, bool)
    # `below` is false for NaN too.
    if not is_number or not 0 < float(weight) < float("inf"):  # type: ignore[arg-type]
        raise invalid(f"{key}.{_WEIGHT}", weight, problem="must be a number above 0", fix=f"set {_WEIGHT}: 1.0")
    if own.get("name") == mixture.name:
        fix = "list its parts in dataset.parts"
        raise invalid(f"{key}.name", mixture.name, problem="a part can't be a mixture", fix=fix)
    for name in own:
        if name in fields_of(DatasetConfig) and name not in _KEYS:
            problem = "is a key of the whole mixture, not of a part"
            raise invalid(f"{key}.{name}", own[name], problem=problem, fix=f"set dataset.{name}")
        if name not in (*_KEYS, _TARGET) and _TARGET not in own:
            raise unknown_key(f"{key}.{name}", [_WEIGHT, *_KEYS, _TARGET])
    # A split `test` that does not exist is an error only where the config names it.
    own.setdefault("test", None)
    with in_part(key):
        config = build(DatasetConfig, options.arranged("dataset", own), "dataset")
    check_values(config, key)
    name = config.path or config.target or config.name
    return Part(key, name, float(weight), config)  # type: ignore[arg-type]


@contextmanager
def in_part(key: str) -> Iterator[None]:
    """Lets config errors name the keys of a part instead of those of `dataset`."""
    try:
        yield
    except ConfigError as error:
        raise ConfigError(str(error).replace("dataset.", f"{key}.")) from error


def describe(parts: list[Part]) -> str:
    """Returns the parts and their shares, such as `70% a.npz, 30% b.npz`."""
    total = sum(part.weight for part in parts)
    shares = []
    for part in parts:
        percent = as_text(round(100 * part.weight / total, 1))
        shares.append(f"{percent}% {part.name}")
    return ", ".join(shares)

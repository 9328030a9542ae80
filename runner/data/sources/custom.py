# ruff: noqa: D102 - a source overrides what DataSource documents
"""`custom`: what a user's function or class returns: arrays by name, or an object with `__len__` and `__getitem__`.

Datasets of Grain, PyTorch and Hugging Face are such objects. Both may be returned per split: {train: ..., test: ...}.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from runner.config import import_path
from runner.config.schema_data import DatasetConfig
from runner.data.base import Array, ArraySpec, DataSource, Encoding, ExampleSource, FullDataset, in_split_order
from runner.data.digest import digest
from runner.data.encode import (
    Column,
    as_column,
    by_clean_name,
    check_lengths,
    check_same_specs,
    checked_example,
    encode,
    infer_spec,
    numeric_array,
    specs_as_bytes,
)
from runner.data.sources.keras_data import by_split, doubt, is_column, split_places
from runner.errors import ConfigError, DataError, describe, invalid

_KEY = "dataset._target_"
_FORMS = (
    "arrays by name, such as {'image': ..., 'label': ...}, or an object with __len__ and __getitem__, or either "
    "of these by split, such as {'train': ..., 'test': ...}"
)


@dataclass(frozen=True, eq=False)
class CustomExamples(ExampleSource):
    """Reads one example at a time from a user's object; every one must have the specs of the first."""

    examples: Any  # with `__len__`, and an example per index
    specs: Mapping[str, ArraySpec]
    where: str

    @property
    def size(self) -> int:
        return len(self.examples)

    def example(self, row: int, epoch: int = 0) -> dict[str, Array]:
        del epoch
        arrays = _read_example(self.examples, row, self.where)
        for name, array in arrays.items():
            if name in self.specs and self.specs[name].dtype == "float32" and array.dtype == np.int32:
                # Python code returns 1 where the other examples have 1.5.
                arrays[name] = array.astype(np.float32)
        return checked_example(arrays, self.specs, self.example_name(row))

    def example_name(self, row: int) -> str:
        return f"{self.where}: example {row}"


def load(config: DatasetConfig, encoding: Encoding | None = None) -> FullDataset:
    """Calls the user's code."""
    contents = by_split(_call_target(config), config.target)
    for content in contents.values():
        if not _is_table(content) and not _is_indexed(content):
            problem = f"must return {_FORMS}, not {type(content).__name__}"
            fix = 'read streams and loaders to their end there (see "Custom dataset" in the docs)'
            raise invalid(_KEY, config.target, problem=problem, fix=fix)
    where = split_places(contents, config.target)
    tables: dict[str, dict[str, Column]] = {}
    objects: dict[str, object] = {}
    for split, content in contents.items():
        if isinstance(content, Mapping):
            tables[split] = _read_table(content, where[split])
        else:
            objects[split] = content
    if tables and objects:
        raise DataError(
            f"{config.target}: one split is arrays and the other an object; return the same kind for all splits"
        )
    about_batches = ""
    sources: dict[str, DataSource]
    if tables:
        # All splits together, because a category has the same number in each of them.
        arrays, encoding = encode(tables, where, encoding)
        sources = dict(arrays)
        content_digest = digest((split, source.arrays) for split, source in arrays.items())
    else:
        sources = {split: _custom_examples(content, where[split]) for split, content in objects.items()}
        first = next(iter(sources))
        about_batches = doubt(objects[first], where[first])
        for split, source in sources.items():
            check_same_specs(source.specs, where[split], sources[first].specs, where[first], "all splits")
        content_digest = _code_digest(config, sources)
    return FullDataset(
        name=config.target,
        version="",
        splits=in_split_order(sources),
        digest=content_digest,
        source=config.target,
        encoding=encoding or Encoding(),
        doubt=about_batches,
    )


def _call_target(config: DatasetConfig) -> object:
    target = import_path.load(config.target, _KEY)
    import_path.check_options("dataset", config.target, target, config.options)
    try:
        return target(**config.options)
    except ConfigError:
        raise
    # The user's code may raise errors of any type.
    except Exception as error:
        raise DataError(f"{_KEY}={config.target} failed: {import_path.raised(error)}") from error


def _is_table(value: object) -> bool:
    if not isinstance(value, Mapping) or not value:
        return False
    return all(isinstance(column, list) or is_column(column) for column in value.values())


def _is_indexed(value: object) -> bool:
    if isinstance(value, tuple | str | bytes):
        # The entries of a tuple are arrays.
        return False
    # A pandas frame is indexed by column name.
    has_names = callable(getattr(value, "keys", None))
    return hasattr(value, "__len__") and hasattr(value, "__getitem__") and not has_names


def _read_table(content: Mapping[object, object], where: str) -> dict[str, Column]:
    columns = {}
    for name, value in by_clean_name(content.items(), where).items():
        place = f"{where}, {name}"
        columns[name] = as_column(place, _as_array(value, place))
    check_lengths(columns, where)
    return columns


def _as_array(value: object, where: str) -> Array:
    try:
        array = np.asarray(value)
    # Objects of other libraries raise errors of any type; a ragged list raises ValueError.
    except Exception as error:
        raise DataError(
            f"{where} can't be converted to an array ({describe(error)}); pad lists of different lengths to one, "
            "as keras.utils.pad_sequences does"
        ) from error
    # A pandas column of strings arrives as Python objects.
    if array.dtype == object and all(isinstance(entry, str) for entry in array.flat):
        return array.astype(np.str_)
    return array


def _custom_examples(content: Any, where: str) -> CustomExamples:
    try:
        size = len(content)
    # An object such as a stream may raise errors of any type here.
    except Exception as error:
        raise DataError(
            f"{where} has no length ({import_path.raised(error)}); streams are not supported, as examples are read in "
            "any order"
        ) from error
    if size < 1:
        raise DataError(f"{where} has no examples")
    first = _read_example(content, 0, where)
    specs = {name: infer_spec(array[None]) for name, array in first.items()}
    return CustomExamples(content, specs, where)


def _read_example(examples: Any, row: int, where: str) -> dict[str, Array]:
    place = f"{where}: example {row}"
    try:
        returned = examples[row]
    except DataError:
        raise
    # The user's code may raise errors of any type.
    except Exception as error:
        raise DataError(f"{place} failed: {import_path.raised(error)}") from error
    arrays = {}
    for name, value in _values_by_name(returned, place).items():
        arrays[name] = _read_value(value, f"{place}, {name}")
    return arrays


def _values_by_name(returned: object, where: str) -> dict[str, object]:
    """Returns an example's values by name: those of a tuple are `x` (or `x0`, `x1`, ...) and, last, `label`."""
    if isinstance(returned, Mapping):
        return by_clean_name(returned.items(), where)
    if isinstance(returned, tuple | list) and len(returned) > 1:
        *inputs, label = returned
        if len(inputs) == 1 and isinstance(inputs[0], Mapping):
            return by_clean_name([*inputs[0].items(), ("label", label)], where)
        names = ["x"]
        if len(inputs) > 1:
            names = [f"x{index}" for index in range(len(inputs))]
        return dict(zip([*names, "label"], returned, strict=True))
    raise DataError(f"{where} is a {type(returned).__name__}; return a dict, or a tuple (x, y)")


def _read_value(value: object, where: str) -> Array:
    array = _as_array(value, where)
    if array.dtype.kind in "US":
        raise DataError(
            f"{where} is the string {str(array)[:40]!r}; return a number for each string, or arrays of all examples"
        )
    batch_of_one: Array = numeric_array(where, array[None])
    first: Array = batch_of_one[0]
    return first


def _code_digest(config: DatasetConfig, sources: Mapping[str, DataSource]) -> str:
    """Hashes specs, sizes, options and source code, without making an example."""
    total = hashlib.sha256()
    for split, source in sorted(sources.items()):
        total.update(f"{split} {source.size} ".encode() + specs_as_bytes(source.specs))
    total.update(json.dumps(config.options, sort_keys=True, default=str).encode())
    path = import_path.source_of(config.target)
    code = config.target.encode()
    if path:
        code = path.read_bytes()
    total.update(code)
    return total.hexdigest()

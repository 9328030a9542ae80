"""Encoding of user data as arrays: float32, int32, bool, and uint8 for images.

Nothing is guessed: a value that is missing, not finite, too large or not a number is a DataError that names its place.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Mapping, Sequence, Sized
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np

from runner.config.texts import is_number
from runner.data.base import IMAGE_DIMS, RESERVED, WEIGHT, Array, ArraySource, ArraySpec, Encoding
from runner.errors import DataError, listed

_IMAGE_CHANNELS = (1, 3, 4)
# A column with more distinct strings is free text or an identifier. As a category it would give a useless model.
_MAX_CATEGORIES = 1000
# So is a column in which every second row has a string of its own. With fewer rows than this, as in a first trial,
# that says nothing.
_MIN_ROWS_FOR_SHARE = 20
# Rows per block of the search for NaN and Inf, which bounds its temporary arrays.
_BLOCK_ROWS = 1 << 16
_INT32 = np.iinfo(np.int32)
_KINDS = {
    "O": "Python objects, which are never unpickled",
    "c": "complex numbers",
    "M": "dates",
    "m": "time differences",
}


@dataclass(frozen=True, eq=False)
class StringColumn:
    """A dictionary-encoded column of strings: `codes` (N,) are indices into the distinct `values`."""

    values: Sequence[str]
    codes: Array

    def __len__(self) -> int:
        return len(self.codes)


Column = Array | StringColumn
Value = TypeVar("Value")


def cleaned(text: str) -> str:
    """Returns a name with `_` for each character that config keys don't accept."""
    name = re.sub(r"\W+", "_", text.strip()).strip("_")
    return f"_{name}" if name[:1].isdigit() else name


def by_clean_name(columns: Iterable[tuple[object, Value]], where: str) -> dict[str, Value]:
    """Returns columns by their cleaned names, each of which must be usable, free and once."""
    named: dict[str, Value] = {}
    for text, column in columns:
        name = cleaned(str(text))
        if not name:
            raise DataError(
                f"{where}: a column has the name {text!r}; give it a name with letters and digits (pandas writes an "
                "unnamed index column unless index=False)"
            )
        if name in RESERVED:
            shown = repr(text)
            if name != text:
                shown += f", which is read as {name!r},"
            fix = "rename that array or column"
            if name == WEIGHT:
                other = "example_weight"
                fix += f", for example to {other}; if it has sample weights, set task.example_weight={other}"
            raise DataError(f"{where}: {shown} is a reserved name; {fix}")
        if name in named:
            raise DataError(f"{where}: two columns are called {name!r}; rename one of them")
        named[name] = column
    return named


def as_column(place: str, array: Array) -> Column:
    """Returns an array; strings become a `StringColumn`."""
    if array.ndim == 0:
        raise DataError(f"{place} is a single value; an array needs one entry per example, (N, ...)")
    if array.dtype.kind not in "US":
        return array
    if array.ndim > 1:
        raise DataError(f"{place} has strings in {array.ndim} dims; store one string per example")
    values, codes = np.unique(array.astype(np.str_), return_inverse=True)
    return string_column(place, list(map(str, values)), codes)


def string_column(place: str, values: Sequence[str], codes: Array) -> StringColumn:
    """Returns a column of strings, of which none may be empty: that means that it is missing."""
    empty_codes = [code for code, value in enumerate(values) if not value.strip()]
    if empty_codes:
        rows = np.flatnonzero(np.isin(codes, empty_codes))
        raise missing_value(place, int(rows[0]))
    return StringColumn(values, codes)


def missing_value(place: str, row: int, what: str = " is missing") -> DataError:
    """Returns the error for a value that is missing or unusable, `row` from 0."""
    return DataError(f"{place}: row {row + 1}{what}; fill it in or remove that row")


def check_lengths(columns: Mapping[str, Sized], where: str) -> None:
    """Checks that all columns have the same number of examples, at least one."""
    first, *others = columns
    for name in others:
        if len(columns[name]) != len(columns[first]):
            raise DataError(
                f"{where}: {first} has {len(columns[first]):,} examples and {name} has {len(columns[name]):,}; "
                "every array needs one entry per example"
            )
    if not len(columns[first]):
        raise DataError(f"{where} has no examples")


def encode(
    splits: Mapping[str, Mapping[str, Column]], where: Mapping[str, str], encoding: Encoding | None
) -> tuple[dict[str, ArraySource], Encoding]:
    """Returns the columns of every split as arrays, and their encoding; `where` names each split in errors.

    Strings get the numbers of a recorded run's categories, else of the sorted strings of all splits.
    """
    _check_same_names(splits, where)
    encoding = encoding or Encoding()
    categories: dict[str, tuple[str, ...]] = {}
    specs: dict[str, ArraySpec] = {}
    arrays: dict[str, dict[str, Array]] = {}
    for name in next(iter(splits.values())):
        columns = {}
        for split, columns_of_split in splits.items():
            columns[f"{where[split]}, {name}"] = columns_of_split[name]
        recorded = encoding.categories.get(name)
        if are_strings(columns, recorded):
            categories[name] = recorded or _categories(columns)
        converted = {}
        for place, column in columns.items():
            if isinstance(column, StringColumn):
                converted[place] = category_numbers(place, column, categories[name])
            else:
                converted[place] = numeric_array(place, column)
        specs[name] = common_spec(converted, categories.get(name, ()))
        for split, array in zip(splits, converted.values(), strict=True):
            arrays.setdefault(split, {})[name] = array.astype(specs[name].dtype, copy=False)
    sources = {split: ArraySource(split_arrays, specs) for split, split_arrays in arrays.items()}
    return sources, replace(encoding, categories=categories)


def _check_same_names(splits: Mapping[str, Mapping[str, Column]], where: Mapping[str, str]) -> None:
    first, *others = splits
    for split in others:
        for name in sorted(set(splits[first]) ^ set(splits[split])):
            has, lacks = (first, split) if name in splits[first] else (split, first)
            raise DataError(
                f"{where[lacks]} has no {name!r}, but {where[has]} has; add it to all splits, or remove it from all"
            )


def are_strings(columns: Mapping[str, Column], recorded: Sequence[str] | None) -> bool:
    """Returns whether the columns of all places are strings, which those of a recorded run's categories must be."""
    strings = [place for place, column in columns.items() if isinstance(column, StringColumn)]
    numbers = [place for place in columns if place not in strings]
    if strings and numbers:
        raise DataError(f"{strings[0]} has strings, but {numbers[0]} has numbers; use one kind in both")
    if recorded and numbers:
        raise DataError(f"{numbers[0]} has numbers, but the run's data had strings: {listed(recorded)}")
    return bool(strings)


def common_spec(arrays: Mapping[str, Array], names: Sequence[str] = ()) -> ArraySpec:
    """Returns the spec that fits the arrays (N, ...) of all places: integers and floats together are floats."""
    where, first = next(iter(arrays.items()))
    for place, array in arrays.items():
        if array.shape[1:] != first.shape[1:]:
            raise DataError(
                f"{place}: shape {list(array.shape[1:])} per example, but {list(first.shape[1:])} in {where}; all "
                "splits need one shape"
            )
    dtype = np.result_type(*arrays.values())
    if dtype.kind == "f":
        dtype = np.dtype(np.float32)
    return infer_spec(first[:0].astype(dtype), names)


def infer_spec(array: Array, names: Sequence[str] = ()) -> ArraySpec:
    """Returns the spec of an array (N, ...); arrays with the shape of images get their dims."""
    shape = array.shape[1:]
    has_image_shape = len(shape) == 3 and shape[-1] in _IMAGE_CHANNELS
    dims: tuple[str, ...] = ()
    if has_image_shape and array.dtype in (np.uint8, np.float32):
        dims = IMAGE_DIMS
    return ArraySpec(tuple(shape), str(array.dtype), dims, tuple(names))


def numeric_array(place: str, values: Array) -> Array:
    """Returns numbers (N, ...) as float32, int32 or bool, or images as uint8.

    uint8 (N, H, W) are gray images and get a channel dim.
    """
    kind = values.dtype.kind
    if kind not in "biuf":
        described = _KINDS.get(kind, f"values of type {values.dtype}")
        raise DataError(
            f"{place} has {described}; store numbers, or leave it out (in a file, by naming the other columns in "
            "dataset.features)"
        )
    if values.dtype == np.uint8 and values.ndim in (3, 4):
        image = values[..., None] if values.ndim == 3 else values
        if image.shape[-1] in _IMAGE_CHANNELS:
            return image
    if kind == "b":
        return values
    if kind == "f":
        return _float32(place, values)
    if values.size and (values.min() < _INT32.min or values.max() > _INT32.max):
        # As float32, ids that differ in their last digits only would be one number.
        raise DataError(
            f"{place} has integers outside the int32 range used on devices; store ids as strings, which become "
            "categories (in a CSV file with a letter before the digits), and quantities as floats"
        )
    return values.astype(np.int32, copy=False)


def _float32(place: str, values: Array) -> Array:
    _check_finite(place, values)
    if values.dtype == np.float32:
        return values
    with np.errstate(over="ignore"):
        converted = values.astype(np.float32)
    # Numbers beyond float32 have become infinite.
    _check_finite(place, converted)
    return converted


def _check_finite(place: str, values: Array) -> None:
    for start in range(0, len(values), _BLOCK_ROWS):
        is_bad = ~np.isfinite(values[start : start + _BLOCK_ROWS])
        if not is_bad.any():
            continue
        row, *indices = np.argwhere(is_bad)[0]
        value = values[(start + row, *indices)]
        position = ""
        if len(indices) == 1:
            position = f", column {indices[0]}"
        elif indices:
            position = f", entry {list(map(int, indices))}"
        problem = f"is {value}, which is outside the range of float32"
        if np.isnan(value):
            problem = "is missing (NaN)"
        raise missing_value(place, start + row, f"{position} {problem}")


def _categories(columns: Mapping[str, Column]) -> tuple[str, ...]:
    strings: set[str] = set()
    for column in columns.values():
        assert isinstance(column, StringColumn), "are_strings has checked it"
        strings.update(column.values)
    return categories_of(next(iter(columns)), strings, sum(map(len, columns.values())))


def categories_of(place: str, strings: Collection[str], rows: int) -> tuple[str, ...]:
    """Returns the distinct strings of a column of some rows, sorted; too many, or numbers among them, are an error."""
    numbers = set(filter(is_number, strings))
    if numbers and len(numbers) < len(strings):
        other = min(set(strings) - numbers)
        raise DataError(
            f"{place} has the string {other!r}, but other rows are numbers; fix that row, or leave the column out"
        )
    has_mostly_distinct = rows >= _MIN_ROWS_FOR_SHARE and len(strings) > rows / 2
    if len(strings) > _MAX_CATEGORIES or has_mostly_distinct:
        raise DataError(
            f"{place} has {len(strings):,} distinct strings in {rows:,} rows and looks like free text, not a "
            "category; leave it out (in a file, by naming the other columns in dataset.features)"
        )
    return tuple(sorted(strings))


def category_numbers(place: str, column: StringColumn, categories: Sequence[str]) -> Array:
    """Returns the category of each row, int32 (N,)."""
    number_of = dict(zip(categories, range(len(categories)), strict=True))
    number_of_code = np.array([number_of.get(string, -1) for string in column.values], np.int32)
    numbers: Array = number_of_code[column.codes]
    if len(numbers) and numbers.min() < 0:
        row = int(numbers.argmin())
        raise DataError(
            f"{place}: row {row + 1} is {column.values[column.codes[row]]!r}, which is not a category of the run "
            f"({listed(categories)}); remove that row, or train a new run"
        )
    return numbers


def describe_spec(spec: ArraySpec | None) -> str:
    """Returns a spec for a message; None is that of an array that is missing."""
    if spec is None:
        return "missing"
    described = f"{spec.dtype} {list(spec.shape)}"
    if spec.names:
        described += f" with the names {listed(spec.names)}"
    return described


def check_same_specs(
    specs: Mapping[str, ArraySpec], where: str, first: Mapping[str, ArraySpec], of_first: str, all_of: str
) -> None:
    """Checks that all splits or parts have the arrays of the first one."""
    for name in {**first, **specs}:
        if specs.get(name) != first.get(name):
            raise DataError(
                f"{where}: array {name} is {describe_spec(specs.get(name))}, but {describe_spec(first.get(name))} in "
                f"{of_first}; {all_of} need the same arrays"
            )


def checked_example(arrays: Mapping[str, Array], specs: Mapping[str, ArraySpec], where: str) -> dict[str, Array]:
    """Returns an example, in the order of the specs; a DataError unless it has the arrays of the first example."""
    for name in {**specs, **arrays}:
        array = arrays.get(name)
        spec = specs.get(name)
        if array is None or spec is None or array.shape != spec.shape or array.dtype != spec.dtype:
            actual = None
            if array is not None:
                actual = ArraySpec(array.shape, str(array.dtype))
            raise DataError(
                f"{where}: array {name} is {describe_spec(actual)}, but {describe_spec(spec)} in the first example; "
                "return the same arrays, shapes and dtypes for every example"
            )
    return {name: arrays[name] for name in specs}


def specs_as_bytes(specs: Mapping[str, ArraySpec]) -> bytes:
    """Returns specs as bytes, for a digest."""
    content = {name: [spec.shape, spec.dtype, spec.dims, spec.names] for name, spec in specs.items()}
    return json.dumps(content).encode()

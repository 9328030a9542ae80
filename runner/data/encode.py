"""Encoding of user data as arrays: float32, int32, bool, and uint8 for images.

Nothing is guessed: a value that is missing, not finite, too large or not a number is an error that names its place.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Mapping, Sequence, Sized
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np

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


@dataclass(frozen=True, eq=False)
class StringColumn:
    """A dictionary-encoded column of strings.

    Attributes:
      values: the distinct strings.
      codes: integers (N,), the index in `values` of each row.
    """

    values: Sequence[str]
    codes: Array

    def __len__(self) -> int:
        return len(self.codes)


Column = Array | StringColumn
Value = TypeVar("Value")


def cleaned(text: str) -> str:
    """Returns a name with `_` for each character that config keys don't accept."""
    name = re.sub(r"\W+", "_", text.strip()).strip("_")
    if name[:1].isdigit():
        return f"_{name}"
    return name


def clean_name(text: str, where: str) -> str:
    """Returns the name of a column or array; see `cleaned`.

    Args:
      text: the user's name.
      where: the file, for the error.

    Raises:
      DataError: the name has no usable character, or is reserved.
    """
    name = cleaned(text)
    if not name:
        raise DataError(
            f"{where}: a column has the name {text!r}; give it a name with letters and digits (pandas writes an "
            "unnamed index column unless index=False)"
        )
    if name in RESERVED:
        shown = repr(text)
        if name != text:
            shown = f"{text!r}, which is read as {name!r},"
        fix = "rename that array or column"
        if name == WEIGHT:
            fix += ", for example to example_weight; if it has sample weights, set task.example_weight=example_weight"
        raise DataError(f"{where}: {shown} is a reserved name; {fix}")
    return name


def by_clean_name(columns: Iterable[tuple[object, Value]], where: str) -> dict[str, Value]:
    """Returns columns by their names; see `clean_name`.

    Raises:
      DataError: two columns have the same name, or a name can't be used.
    """
    named: dict[str, Value] = {}
    for text, column in columns:
        name = clean_name(str(text), where)
        if name in named:
            raise DataError(f"{where}: two columns are called {name!r}; rename one of them")
        named[name] = column
    return named


def as_column(place: str, array: Array) -> Column:
    """Returns an array; strings become a `StringColumn`.

    Raises:
      DataError: it is a single value, or has strings in several dims, or a string is missing.
    """
    if array.ndim == 0:
        raise DataError(f"{place} is a single value; an array needs one entry per example, (N, ...)")
    if array.dtype.kind not in "US":
        return array
    if array.ndim > 1:
        raise DataError(f"{place} has strings in {array.ndim} dims; store one string per example")
    values, codes = np.unique(array.astype(np.str_), return_inverse=True)
    return string_column(place, list(map(str, values)), codes)


def string_column(place: str, values: Sequence[str], codes: Array) -> StringColumn:
    """Returns a column of strings; see `StringColumn`.

    Raises:
      DataError: a string is empty, which means that it is missing.
    """
    empty_codes = [code for code, value in enumerate(values) if not value.strip()]
    if empty_codes:
        rows = np.flatnonzero(np.isin(codes, empty_codes))
        raise missing_value(place, int(rows[0]))
    return StringColumn(values, codes)


def missing_value(place: str, row: int, what: str = " is missing") -> DataError:
    """Returns the error for a value that is missing or unusable, `row` from 0."""
    return DataError(f"{place}: row {row + 1}{what}; fill it in or remove that row")


def check_lengths(columns: Mapping[str, Sized], where: str) -> None:
    """Checks that all columns have the same number of examples, at least one.

    Raises:
      DataError: two columns differ, or there are no examples.
    """
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
    splits: Mapping[str, Mapping[str, Column]],
    where: Mapping[str, str],
    encoding: Encoding | None,
) -> tuple[dict[str, ArraySource], Encoding]:
    """Encodes the columns of every split as arrays.

    Args:
      splits: name -> its columns by name.
      where: split -> its file or callable, for errors.
      encoding: of a recorded run, whose categories are used; None: the sorted strings of all splits become categories.

    Returns:
      The splits, and their encoding.

    Raises:
      DataError: splits have different columns, or values that no array can represent.
    """
    _check_same_names(splits, where)
    encoding = encoding or Encoding()
    first = next(iter(splits))
    categories: dict[str, tuple[str, ...]] = {}
    for name in splits[first]:
        columns = {split: columns_of_split[name] for split, columns_of_split in splits.items()}
        recorded = encoding.categories.get(name, ())
        are_strings = [isinstance(column, StringColumn) for column in columns.values()]
        if recorded and not all(are_strings):
            raise DataError(f"{where[first]}, {name} has numbers, but the run's data had strings: {listed(recorded)}")
        if any(are_strings):
            categories[name] = tuple(recorded) or _categories(name, columns, where)

    arrays: dict[str, dict[str, Array]] = {}
    for split, split_columns in splits.items():
        arrays[split] = {}
        for name, column in split_columns.items():
            place = f"{where[split]}, {name}"
            if isinstance(column, StringColumn):
                arrays[split][name] = category_numbers(place, column, categories[name])
            else:
                arrays[split][name] = numeric_array(place, column)

    specs = _common_specs(arrays, where, categories)
    for split_arrays in arrays.values():
        for name, array in split_arrays.items():
            if array.dtype != specs[name].dtype:
                split_arrays[name] = array.astype(specs[name].dtype)
    sources = {split: ArraySource(split_arrays, specs) for split, split_arrays in arrays.items()}
    return sources, replace(encoding, categories=categories)


def _check_same_names(splits: Mapping[str, Mapping[str, Column]], where: Mapping[str, str]) -> None:
    first, *others = splits
    for split in others:
        for name in [*splits[first], *splits[split]]:
            if (name in splits[first]) == (name in splits[split]):
                continue
            has = split
            lacks = first
            if name in splits[first]:
                has = first
                lacks = split
            raise DataError(
                f"{where[lacks]} has no {name!r}, but {where[has]} has; add it to all splits, or remove it from all"
            )


def _common_specs(
    arrays: Mapping[str, Mapping[str, Array]], where: Mapping[str, str], categories: Mapping[str, Sequence[str]]
) -> dict[str, ArraySpec]:
    """Returns the specs that fit the arrays of every split."""
    first, *others = arrays
    specs = {name: infer_spec(array, categories.get(name, ())) for name, array in arrays[first].items()}
    for split in others:
        for name, array in arrays[split].items():
            spec = specs[name]
            if array.shape[1:] != spec.shape:
                raise DataError(
                    f"{where[split]}, {name}: shape {list(array.shape[1:])} per example, but {list(spec.shape)} in "
                    f"{where[first]}; all splits need one shape"
                )
            if array.dtype != spec.dtype:
                # One file has integers and another one has floats; together they are floats.
                common = np.result_type(array.dtype, spec.dtype)
                dtype = str(common)
                if common.kind == "f":
                    dtype = "float32"
                specs[name] = replace(spec, dtype=dtype)
    return specs


def infer_spec(array: Array, names: Sequence[str] = ()) -> ArraySpec:
    """Returns the spec of an array (N, ...).

    Arrays with the shape of images get their dims.
    """
    shape = array.shape[1:]
    has_image_shape = len(shape) == 3 and shape[-1] in _IMAGE_CHANNELS
    dims: tuple[str, ...] = ()
    if has_image_shape and array.dtype in (np.uint8, np.float32):
        dims = IMAGE_DIMS
    return ArraySpec(tuple(shape), str(array.dtype), dims, tuple(names))


def numeric_array(place: str, values: Array) -> Array:
    """Returns numbers as float32, int32 or bool, or images as uint8.

    Args:
      place: file and column, for errors.
      values: (N, ...); uint8 of three dims (N, H, W) are gray images and get a channel dim.

    Raises:
      DataError: the values are not numbers, or are outside the range of the dtype.
    """
    kind = values.dtype.kind
    if kind not in "biuf":
        raise DataError(
            f"{place} has {_describe_dtype(values.dtype)}; store numbers, or leave it out (in a file, by naming the "
            "other columns in dataset.features)"
        )
    if values.dtype == np.uint8 and values.ndim in (3, 4):
        image = values
        if values.ndim == 3:
            # Gray images may be stored without the dim of channels.
            image = values[..., None]
        if image.shape[-1] in _IMAGE_CHANNELS:
            return image
    if kind == "b":
        return values
    if kind == "f":
        return _float32(place, values)
    if len(values) and values.size:
        least = int(values.min())
        largest = int(values.max())
        if least < _INT32.min or largest > _INT32.max:
            # As float32, ids that differ in their last digits only would be one number.
            raise DataError(
                f"{place} has integers outside the int32 range used on devices; store ids as strings, which become "
                "categories (in a CSV file with a letter before the digits), and quantities as floats"
            )
    return values.astype(np.int32, copy=False)


def _describe_dtype(dtype: np.dtype) -> str:
    descriptions = {
        "O": "Python objects, which are never unpickled",
        "c": "complex numbers",
        "M": "dates",
        "m": "time differences",
    }
    return descriptions.get(dtype.kind, f"values of type {dtype}")


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


def _categories(name: str, columns: Mapping[str, Column], where: Mapping[str, str]) -> tuple[str, ...]:
    """Returns all strings of a column, sorted."""
    strings: set[str] = set()
    rows = 0
    for split, column in columns.items():
        if not isinstance(column, StringColumn):
            other = next(other for other, values in columns.items() if isinstance(values, StringColumn))
            raise DataError(
                f"{where[other]}, {name} has strings, but {where[split]}, {name} has numbers; use one kind in both"
            )
        strings.update(column.values)
        rows += len(column)
    return categories_of(f"{next(iter(where.values()))}, {name}", strings, rows)


def categories_of(place: str, strings: Collection[str], rows: int) -> tuple[str, ...]:
    """Returns the categories of a column of strings: its distinct strings, sorted.

    Args:
      place: file and column, for the error.
      strings: the distinct ones.
      rows: of the column.

    Raises:
      DataError: some of the strings are numbers, or too many are distinct.
    """
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


def is_number(text: str) -> bool:
    """Returns whether a string reads as a number."""
    try:
        float(text)
    except ValueError:
        return False
    return True


def category_numbers(place: str, column: StringColumn, categories: Sequence[str]) -> Array:
    """Returns the category of each row, int32 (N,).

    Raises:
      DataError: a string is none of the categories.
    """
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
    names = f" with the names {listed(spec.names)}" if spec.names else ""
    return f"{spec.dtype} {list(spec.shape)}{names}"


def check_example(arrays: Mapping[str, Array], specs: Mapping[str, ArraySpec], where: str) -> None:
    """Checks that an example has the arrays of the first one.

    Raises:
      DataError: it has others, or another shape or dtype.
    """
    for name in {**specs, **arrays}:
        array = arrays.get(name)
        spec = specs.get(name)
        if array is None or spec is None or array.shape != spec.shape or array.dtype != spec.dtype:
            actual = None if array is None else ArraySpec(array.shape, str(array.dtype))
            raise DataError(
                f"{where}: array {name} is {describe_spec(actual)}, but {describe_spec(spec)} in the first example; "
                "return the same arrays, shapes and dtypes for every example"
            )


def specs_as_bytes(specs: Mapping[str, ArraySpec]) -> bytes:
    """Returns specs as bytes, for a digest."""
    content = {name: [spec.shape, spec.dtype, spec.dims, spec.names] for name, spec in specs.items()}
    return json.dumps(content).encode()

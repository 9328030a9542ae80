"""From a user's own values to the arrays that a model can take: float32, int32, bool, and uint8 of images.

Nothing is guessed that could be wrong without a word: what is missing, not finite, too large or not a number is
refused with the place where it stands.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np

from runner.data.base import RESERVED, WEIGHT, Array, ArraySource, ArraySpec, Encoding
from runner.errors import DataError

IMAGE_DIMS = ("height", "width", "channel")
_CHANNELS = (1, 3, 4)
_MOST_WORDS = 1000
_FEW_ROWS = 20
_SHOWN = 5  # names of a list that a line shows
_CHUNK = 1 << 16  # examples that are looked at at once
_INT32 = np.iinfo(np.int32)


@dataclass(frozen=True, eq=False)
class Words:
    """A column of words.

    Attributes:
      values: the different ones.
      codes: integers (N,), which of them each row holds.
    """

    values: Sequence[str]
    codes: Array

    def __len__(self) -> int:
        return len(self.codes)


Column = Array | Words
Value = TypeVar("Value")


def cleaned(text: str) -> str:
    """Returns a name as the config and every library take it: signs that no name has become `_`."""
    name = re.sub(r"\W+", "_", text.strip()).strip("_")
    return f"_{name}" if name[:1].isdigit() else name


def name_of(text: str, where: str) -> str:
    """Returns a column's or an array's name, see `cleaned`.

    Args:
      text: as the user wrote it.
      where: the file, for the error.

    Raises:
      DataError: nothing is left of it, or it is one of the runner's own names.
    """
    name = cleaned(text)
    if not name:
        raise DataError(
            f"{where}: a column has the name {text!r}; give it one of letters and digits (an index that "
            "pandas wrote has none: index=False leaves it out)"
        )
    if name in RESERVED:
        shown = repr(text) if name == text else f"{text!r}, which is read as {name!r},"
        fix = "rename that array or column"
        if name == WEIGHT:
            fix += ", for example to example_weight; if it weighs examples, set task.example_weight=example_weight"
        raise DataError(f"{where}: {shown} is a name of the runner's own; {fix}")
    return name


def by_name(columns: Iterable[tuple[object, Value]], where: str) -> dict[str, Value]:
    """Returns columns by their names, see `name_of`.

    Raises:
      DataError: two have the same one, or one can't be used.
    """
    found: dict[str, Value] = {}
    for text, column in columns:
        name = name_of(str(text), where)
        if name in found:
            raise DataError(f"{where}: two columns are called {name!r}; rename one of them")
        found[name] = column
    return found


def as_column(place: str, array: Array) -> Column:
    """Returns an array, words numbered.

    Raises:
      DataError: it is a single value, or has words in several dims, or a word is missing.
    """
    if array.ndim == 0:
        raise DataError(f"{place} is a single value; an array needs one entry an example, (N, ...)")
    if array.dtype.kind not in "US":
        return array
    if array.ndim > 1:
        raise DataError(f"{place} holds words in {array.ndim} dims; one word an example is needed")
    values, codes = np.unique(array.astype(np.str_), return_inverse=True)
    return words(place, [str(value) for value in values], codes)


def words(place: str, values: Sequence[str], codes: Array) -> Words:
    """Returns a column of words; see `Words`.

    Raises:
      DataError: one is missing.
    """
    empty = [number for number, value in enumerate(values) if not value.strip()]
    if empty:
        raise missing(place, int(np.flatnonzero(np.isin(codes, empty))[0]))
    return Words(values, codes)


def missing(place: str, row: int, what: str = " is missing") -> DataError:
    """Returns the error of a value that is not there, `row` from 0."""
    return DataError(f"{place}: row {row + 1}{what}; fill it in or leave that row out")


def shown(names: Sequence[str]) -> str:
    """Returns the first names of a list."""
    return ", ".join(names[:_SHOWN]) + (f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else "")


def check_lengths(columns: Mapping[str, Column], where: str) -> None:
    """Checks that all have an entry an example.

    Raises:
      DataError: names two that have not, or an empty one.
    """
    first, *others = columns
    for name in others:
        if len(columns[name]) != len(columns[first]):
            raise DataError(
                f"{where}: {first} has {len(columns[first]):,} examples and {name} has {len(columns[name]):,}; "
                "every array needs one entry an example"
            )
    if not len(columns[first]):
        raise DataError(f"{where} has no examples")


def encode(
    splits: Mapping[str, Mapping[str, Column]], where: Mapping[str, str], encoding: Encoding | None
) -> tuple[dict[str, ArraySource], Encoding]:
    """Makes arrays of every split's columns.

    Args:
      splits: name -> its columns by name.
      where: split -> the file or callable that it came from, for errors.
      encoding: whose categories words are looked up in; None: they are made of all splits, sorted.

    Returns:
      The splits, and how words became numbers.

    Raises:
      DataError: splits have different columns, or values that no array can hold.
    """
    first, *others = splits
    for split in others:
        for name in [*splits[first], *splits[split]]:
            if (name in splits[first]) != (name in splits[split]):
                has, lacks = (first, split) if name in splits[first] else (split, first)
                raise DataError(
                    f"{where[lacks]} has no {name!r}, which {where[has]} has; all splits need the same, so "
                    "leave it out of both or give it to both"
                )
    categories: dict[str, tuple[str, ...]] = {}
    for name in splits[first]:
        columns = {split: splits[split][name] for split in splits}
        known = () if encoding is None else encoding.categories.get(name, ())
        if known and not all(isinstance(one, Words) for one in columns.values()):
            raise DataError(f"{where[first]}, {name} holds numbers, and the run's data words: {shown(known)}")
        if any(isinstance(one, Words) for one in columns.values()):
            categories[name] = _categories(name, columns, where, encoding)
    arrays: dict[str, dict[str, Array]] = {split: {} for split in splits}
    for split, held in splits.items():
        for name, column in held.items():
            place = f"{where[split]}, {name}"
            if isinstance(column, Words):
                arrays[split][name] = _looked_up(place, column, categories[name])
            else:
                arrays[split][name] = numbers(place, column)
    specs = {name: spec(array, categories.get(name, ())) for name, array in arrays[first].items()}
    for split in others:
        for name, array in arrays[split].items():
            if array.shape[1:] != specs[name].shape:
                raise DataError(
                    f"{where[split]}, {name}: {list(array.shape[1:])} an example, and {list(specs[name].shape)} in "
                    f"{where[first]}; all splits need one shape"
                )
            if array.dtype != specs[name].dtype:  # whole numbers in one file and broken ones in the other
                common = np.result_type(array.dtype, specs[name].dtype)
                specs[name] = replace(specs[name], dtype="float32" if common.kind == "f" else str(common))
    for columns_of in arrays.values():
        for name, array in columns_of.items():
            columns_of[name] = array if array.dtype == specs[name].dtype else array.astype(specs[name].dtype)
    used = Encoding(categories) if encoding is None else replace(encoding, categories=categories)
    return {split: ArraySource(found, specs) for split, found in arrays.items()}, used


def spec(array: Array, names: Sequence[str] = ()) -> ArraySpec:
    """Returns the spec of an array (N, ...); what has the shape of images has their dims."""
    shape = array.shape[1:]
    image = len(shape) == 3 and shape[-1] in _CHANNELS and array.dtype in (np.uint8, np.float32)
    return ArraySpec(tuple(shape), str(array.dtype), IMAGE_DIMS if image else (), tuple(names))


def numbers(place: str, values: Array) -> Array:
    """Returns numbers as float32, int32, bool, or uint8 of images.

    Args:
      place: where they stand, for errors.
      values: (N, ...); bytes of three dims (N, H, W) are gray images and get a channel.

    Raises:
      DataError: it holds something else, or what the type does not.
    """
    kind = values.dtype.kind
    if kind not in "biuf":
        what = {"O": "Python objects, which are never unpickled", "c": "complex numbers", "M": "dates", "m": "times"}
        raise DataError(
            f"{place} holds {what.get(kind, f'values of type {values.dtype}')}; numbers are needed: write it as such, "
            "or leave it out (of a file by naming the others in dataset.features)"
        )
    if values.dtype == np.uint8 and values.ndim in (3, 4):
        image = values[..., None] if values.ndim == 3 else values
        if image.shape[-1] in _CHANNELS:
            return image
    if kind == "b":
        return values
    if kind == "f":
        _check_finite(place, values)
        with np.errstate(over="ignore"):
            found = values if values.dtype == np.float32 else values.astype(np.float32)
        if found is not values:
            _check_finite(place, found)
        return found
    if len(values) and values.size and not _INT32.min <= int(values.min()) <= int(values.max()) <= _INT32.max:
        raise DataError(f"{place} holds whole numbers beyond int32, in which devices count; write it as float")
    return values if values.dtype == np.int32 else values.astype(np.int32)


def _check_finite(place: str, values: Array) -> None:
    for start in range(0, len(values), _CHUNK):
        bad = ~np.isfinite(values[start : start + _CHUNK])
        if bad.any():
            row, *rest = np.argwhere(bad)[0]
            value = values[(start + row, *rest)]
            column = f", column {rest[0]}" if len(rest) == 1 else (f", entry {[int(i) for i in rest]}" if rest else "")
            what = "is missing (NaN)" if np.isnan(value) else f"is {value}, which is beyond float32"
            raise missing(place, start + row, f"{column} {what}")


def _categories(
    name: str, columns: Mapping[str, Column], where: Mapping[str, str], encoding: Encoding | None
) -> tuple[str, ...]:
    words: set[str] = set()
    rows = 0
    for split, column in columns.items():
        if not isinstance(column, Words):
            held = next(one for one, other in columns.items() if isinstance(other, Words))
            raise DataError(f"{where[held]}, {name} holds words and {where[split]}, {name} holds numbers")
        words.update(column.values)
        rows += len(column)
    if encoding is not None and name in encoding.categories:
        return tuple(encoding.categories[name])
    place = f"{next(iter(where.values()))}, {name}"
    readable = [word for word in words if is_number(word)]
    if readable and len(readable) < len(words):
        split, row, word = _first_word(columns)
        raise DataError(f"{where[split]}, {name}: row {row} holds {word!r} and others numbers; fix it or that column")
    if len(words) > _MOST_WORDS or (rows >= _FEW_ROWS and len(words) > rows / 2):
        raise DataError(
            f"{place} holds {len(words):,} different words in {rows:,} rows, which is text and no category; leave it "
            "out (of a file by naming the others in dataset.features)"
        )
    return tuple(sorted(words))


def is_number(word: str) -> bool:
    """Tells whether a text reads as a number."""
    try:
        float(word)
    except ValueError:
        return False
    return True


def _first_word(columns: Mapping[str, Column]) -> tuple[str, int, str]:
    """Returns split, row from 1 and the word of the first one that is no number."""
    for split, column in columns.items():
        assert isinstance(column, Words)
        for row, code in enumerate(column.codes):
            if not is_number(column.values[code]):
                return split, row + 1, column.values[code]
    raise AssertionError("there is one")


def _looked_up(place: str, column: Words, categories: Sequence[str]) -> Array:
    numbers_by_word = {word: number for number, word in enumerate(categories)}
    codes = np.array([numbers_by_word.get(word, -1) for word in column.values], np.int32)
    found: Array = codes[column.codes]
    if len(found) and found.min() < 0:
        row = int(found.argmin())
        raise DataError(
            f"{place}: row {row + 1} holds {column.values[column.codes[row]]!r}, which the run's data did not; that "
            f"had {shown(list(categories))}"
        )
    return found


def described(specs: Mapping[str, ArraySpec]) -> bytes:
    """Returns specs as bytes, for a digest."""
    content = {name: [one.shape, one.dtype, one.dims, one.names] for name, one in specs.items()}
    return json.dumps(content).encode()

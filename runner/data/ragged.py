"""Sequences of different lengths as one array, padded at their end."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from runner.data.base import Array
from runner.data.encode import Column
from runner.data.packing import POSITIONS, SEGMENTS
from runner.errors import DataError, describe, did_you_mean, invalid

_KEY = "dataset.pad"


@dataclass(frozen=True, eq=False)
class Ragged:
    """A column of sequences.

    Attributes:
      sequences: one array (t, ...) per example, each with its own t.
    """

    sequences: Sequence[Array]

    def __len__(self) -> int:
        return len(self.sequences)

    @property
    def longest(self) -> int:
        """The largest t; 0 if there are no examples."""
        return max(map(len, self.sequences), default=0)


def check_names(pad: Collection[str], names: Collection[str]) -> None:
    """Checks that the dataset has the arrays of `dataset.pad`.

    Raises:
      ConfigError: one is missing.
    """
    for name in pad:
        if name not in names:
            problem = f"unknown array (the arrays: {', '.join(names)})"
            raise invalid(_KEY, name, problem=problem, fix=did_you_mean(name, names, "name one of them"))


def is_ragged(value: object) -> bool:
    """Returns whether a value is a list or object array of sequences that differ in length."""
    if isinstance(value, np.ndarray):
        if value.dtype != object or not value.ndim:
            return False
    elif not isinstance(value, list):
        return False
    lengths = set()
    for entry in value:
        if isinstance(entry, list) or (isinstance(entry, np.ndarray) and entry.ndim):
            lengths.add(len(entry))
    return len(lengths) > 1


def read(value: Any, place: str) -> Ragged:
    """Returns a user's list or object array of sequences.

    Args:
      value: one sequence of numbers per example.
      place: its name in errors.

    Raises:
      DataError: an entry is not a sequence of numbers, or differs from the others in more than its length.
    """
    sequences: list[Array] = []
    for row, entry in enumerate(value):
        try:
            sequence = np.asarray(entry)
        # Objects of other libraries raise errors of any type.
        except Exception as error:
            raise DataError(f"{place}: example {row} can't be converted to an array ({describe(error)})") from error
        # An empty list is float to NumPy, but fits any numbers.
        is_empty = sequence.ndim > 0 and not len(sequence)
        if sequence.ndim == 0 or (sequence.dtype.kind not in "biuf" and not is_empty):
            raise DataError(
                f"{place}: example {row} is not a sequence of numbers, which {_KEY} needs; return one list or array "
                "per example"
            )
        sequences.append(sequence)
    shapes = {sequence.shape[1:] for sequence in sequences if len(sequence)}
    if len(shapes) > 1:
        raise DataError(f"{place}: sequences may differ in their length only; give all steps one shape")
    return Ragged(sequences)


def padded(
    splits: Mapping[str, Mapping[str, Column | Ragged]],
    pad: Mapping[str, float],
    length: int | None,
    recorded: Mapping[str, int],
    *,
    pack: bool = False,
) -> tuple[dict[str, dict[str, Column]], dict[str, int]]:
    """Returns the columns of every split, with sequences as arrays (N, T, ...).

    Args:
      splits: name -> its columns by name.
      pad: `dataset.pad`: column -> the value of padding.
      length: `dataset.pad_length`, T of every padded column; None: the longest sequence of the column in any split.
      recorded: column -> T of the recorded run.
      pack: `dataset.pack`: adds the column `segments` (N, T), 1 for a step and 0 for padding.

    Returns:
      The splits, and T of each padded column.

    Raises:
      DataError: a sequence is longer than T; with `pack`, the sequences of an example have different lengths.
    """
    lengths: dict[str, int] = {}
    for name in pad:
        lengths[name] = recorded.get(name) or length or _longest(splits, name)
    arrays: dict[str, dict[str, Column]] = {}
    for split, columns in splits.items():
        arrays[split] = {}
        for name, column in columns.items():
            if isinstance(column, Ragged):
                place = f"{_KEY}, {name} of split {split}"
                arrays[split][name] = _as_array(column, lengths[name], pad[name], place)
            else:
                arrays[split][name] = column
        if pack:
            arrays[split][SEGMENTS] = _segments(columns, max(lengths.values()), f"split {split}")
    return arrays, lengths


def _segments(columns: Mapping[str, Column | Ragged], length: int, place: str) -> Array:
    """Returns int32 (N, T), 1 for the steps of an example and 0 for the padding after them.

    Raises:
      DataError: the sequences of an example have different lengths.
    """
    for name in (SEGMENTS, POSITIONS):
        if name in columns:
            raise DataError(f"{place} has an array called {name}, which dataset.pack adds; rename or leave it out")
    by_name = {name: column for name, column in columns.items() if isinstance(column, Ragged)}
    steps = {name: np.array(list(map(len, column.sequences)), np.int64) for name, column in by_name.items()}
    first, *others = steps
    check_equal_lengths(steps[first], first, {name: steps[name] for name in others}, place)
    return (np.arange(length) < steps[first][:, None]).astype(np.int32)


def check_equal_lengths(lengths: Array, name: str, others: Mapping[str, Array], place: str) -> None:
    """Checks that all sequences of an example have one length, which packed rows need.

    Args:
      lengths: steps of each example in the first array, (N,).
      name: of that array.
      others: the steps in the other arrays.
      place: of the examples, for the error.

    Raises:
      DataError: two arrays differ.
    """
    for other, steps in others.items():
        different = np.flatnonzero(steps != lengths)
        if len(different):
            row = int(different[0])
            raise DataError(
                f"dataset.pack, {place}: example {row} has {lengths[row]} steps in {name}, but {steps[row]} in "
                f"{other}; give all its sequences one length"
            )


def _longest(splits: Mapping[str, Mapping[str, Column | Ragged]], name: str) -> int:
    longest = 1
    for columns in splits.values():
        column = columns.get(name)
        if isinstance(column, Ragged):
            longest = max(longest, column.longest)
    return longest


def _as_array(column: Ragged, length: int, value: float, place: str) -> Array:
    """Returns sequences as one array (N, T, ...), padded at their end.

    Raises:
      DataError: a sequence is longer, or an integer column is padded with a fraction.
    """
    if column.longest > length:
        row = next(row for row, sequence in enumerate(column.sequences) if len(sequence) > length)
        raise DataError(
            f"{place}: example {row} has {len(column.sequences[row])} steps, more than {length}; shorten it, or train "
            f"with dataset.pad_length={column.longest}"
        )
    with_steps = [sequence for sequence in column.sequences if len(sequence)]
    step: tuple[int, ...] = ()
    # Of sequences without steps, the value of padding decides.
    dtype: np.dtype[Any] = np.dtype(np.float32)
    if with_steps:
        step = with_steps[0].shape[1:]
        dtype = np.result_type(*(sequence.dtype for sequence in with_steps))
    elif float(value).is_integer():
        dtype = np.dtype(np.int64)
    if dtype.kind == "f":
        dtype = np.dtype(np.float32)
    elif value != int(value):
        raise DataError(f"{place}: integers can't be padded with {value:g}; pad them with an integer")
    else:
        # Small and unsigned types may not have the value, such as -1.
        dtype = np.dtype(np.int64)
    array = np.full((len(column), length, *step), value, dtype)
    for row, sequence in enumerate(column.sequences):
        if len(sequence):
            array[row, : len(sequence)] = sequence
    return array

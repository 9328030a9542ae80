"""Sequences of different lengths that user code returns, as one array padded at their end."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np

from runner.data.base import Array
from runner.data.encode import Column
from runner.errors import DataError, describe, did_you_mean, invalid

_KEY = "dataset.pad"
# One array (t, ...) per example, each with its own t.
Sequences = list[Array]


def check_names(pad: Collection[str], names: Collection[str]) -> None:
    """Checks that the dataset has the arrays of `dataset.pad`."""
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


def read(value: Any, place: str) -> Sequences:
    """Returns a user's list or object array, which has one sequence of numbers per example."""
    sequences: Sequences = []
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
    return sequences


def padded(
    splits: Mapping[str, Mapping[str, Column | Sequences]],
    pad: Mapping[str, float],
    length: int | None,
    recorded: Mapping[str, int],
) -> tuple[dict[str, dict[str, Column]], dict[str, int]]:
    """Returns the columns of every split, with sequences as arrays (N, T, ...), and T of each padded column.

    T is that of the recorded run, else `length`, else that of the longest sequence of the column in any split.
    """
    lengths: dict[str, int] = {}
    for name in pad:
        steps = [len(sequence) for columns in splits.values() for sequence in _sequences(columns, name)]
        lengths[name] = recorded.get(name) or length or max([1, *steps])
    arrays: dict[str, dict[str, Column]] = {}
    for split, columns in splits.items():
        arrays[split] = {}
        for name, column in columns.items():
            if isinstance(column, list):
                place = f"{_KEY}, {name} of split {split}"
                arrays[split][name] = _as_array(column, lengths[name], pad[name], place)
            else:
                arrays[split][name] = column
    return arrays, lengths


def _sequences(columns: Mapping[str, Column | Sequences], name: str) -> Sequences:
    column = columns.get(name)
    return column if isinstance(column, list) else []


def _as_array(sequences: Sequences, length: int, value: float, place: str) -> Array:
    """Returns sequences as one array (N, T, ...), padded at their end."""
    for row, sequence in enumerate(sequences):
        if len(sequence) > length:
            raise DataError(
                f"{place}: example {row} has {len(sequence)} steps, more than {length}; shorten it, or train with "
                f"dataset.pad_length={max(map(len, sequences))}"
            )
    with_steps = [sequence for sequence in sequences if len(sequence)]
    step = with_steps[0].shape[1:] if with_steps else ()
    dtype = padded_dtype([sequence.dtype for sequence in with_steps], value, place)
    array = np.full((len(sequences), length, *step), value, dtype)
    for row, sequence in enumerate(sequences):
        if len(sequence):
            array[row, : len(sequence)] = sequence
    return array


def padded_dtype(dtypes: Collection[np.dtype], value: float, place: str) -> np.dtype:
    """Returns the dtype of sequences and their padding: float32, or int64, because small types may not have -1."""
    # Of sequences without steps, the value of padding decides.
    is_float = np.result_type(*dtypes).kind == "f" if dtypes else not float(value).is_integer()
    if is_float:
        return np.dtype(np.float32)
    if not float(value).is_integer():
        raise DataError(f"{place}: integers can't be padded with {value:g}; pad them with an integer")
    return np.dtype(np.int64)

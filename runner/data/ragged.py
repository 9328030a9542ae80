"""Sequences of different lengths, padded at their end to one length."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from runner.data.base import Array, ArraySpec, Rows
from runner.data.encode import Column, infer_spec, numeric_array
from runner.errors import DataError, describe, did_you_mean, invalid

_KEY = "dataset.pad"
# Steps of sequences that are all empty: nothing shows their shape and dtype.
NO_STEPS = np.zeros(0, np.float32)


@dataclass(frozen=True, eq=False)
class Sequences:
    """Sequences: the `steps` (S, ...) of all, one after the other, and the number of steps of each, int64 (N,)."""

    steps: Array
    lengths: Rows

    def __len__(self) -> int:
        return len(self.lengths)


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
    """Reads a user's list or object array, which has one sequence of numbers per example."""
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
    with_steps = [sequence for sequence in sequences if len(sequence)]
    if len({sequence.shape[1:] for sequence in with_steps}) > 1:
        raise DataError(f"{place}: sequences may differ in their length only; give all steps one shape")
    steps = np.concatenate(with_steps) if with_steps else NO_STEPS
    return Sequences(steps, np.array(list(map(len, sequences)), np.int64))


def padded(
    splits: Mapping[str, Mapping[str, Column | Sequences]],
    pad: Mapping[str, float],
    length: int | None,
    recorded: Mapping[str, int],
) -> tuple[dict[str, dict[str, Column]], dict[str, int]]:
    """Returns the columns of every split, with sequences as arrays (N, T, ...), and T of each padded column.

    T is that of the recorded run, else `length`, else that of the longest sequence of the column in any split.
    """
    arrays: dict[str, dict[str, Column]] = {}
    for split, columns in splits.items():
        arrays[split] = {name: column for name, column in columns.items() if not isinstance(column, Sequences)}
    lengths: dict[str, int] = {}
    for name, value in pad.items():
        numbers = {}
        longest = {}
        for split, columns in splits.items():
            column = columns[name]
            assert isinstance(column, Sequences), "`check_names` has found it, and `read` has read it"
            place = f"{_KEY}, {name} of split {split}"
            numbers[split] = Sequences(numeric_array(f"{place}, all steps in order", column.steps), column.lengths)
            longest[place] = int(column.lengths.max(initial=0))
        steps = [sequences.steps for sequences in numbers.values()]
        spec = padded_spec(longest, steps, value, recorded.get(name) or length)
        lengths[name] = spec.shape[0]
        for split, sequences in numbers.items():
            arrays[split][name] = as_array(sequences, spec, value)
    return arrays, lengths


def padded_spec(longest: Mapping[str, int], steps: Collection[Array], value: float, length: int | None) -> ArraySpec:
    """Returns the spec of sequences that are padded to `length`, or to the longest, with a value.

    `longest` is the number of steps of the longest sequence by place. `steps` are some of each place, if it has any.
    """
    length = length or max(1, *longest.values())
    for place, count in longest.items():
        if count > length:
            raise DataError(
                f"{place}: a sequence has {count} steps, more than {length}; shorten it, or train with "
                f"dataset.pad_length={count}"
            )
    known = [array for array in steps if len(array)]
    where = next(iter(longest))
    if len({array.shape[1:] for array in known}) > 1:
        raise DataError(f"{where}: the steps of all splits need one shape")
    # Of sequences without steps, the value of padding decides.
    is_float = not float(value).is_integer()
    if known:
        is_float = np.result_type(*known).kind == "f"
    if not is_float and not float(value).is_integer():
        raise DataError(f"{where}: integers can't be padded with {value:g}; pad them with an integer")
    shape = known[0].shape[1:] if known else ()
    # Not a smaller type, which may not have -1.
    return infer_spec(np.empty((0, length, *shape), np.float32 if is_float else np.int32))


def as_array(sequences: Sequences, spec: ArraySpec, value: float) -> Array:
    """Returns sequences as one array (N, T, ...), padded at their end."""
    array = np.full((len(sequences), *spec.shape), value, spec.dtype)
    if len(sequences.steps):
        # In the order of the rows, as the steps are.
        array[np.arange(spec.shape[0]) < sequences.lengths[:, None]] = sequences.steps
    return array

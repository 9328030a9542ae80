# ruff: noqa: D102 - a source overrides what DataSource documents
"""Sequence packing of whole examples: rows of one length, each with several examples of different lengths.

Which examples share a row depends on their lengths and their order in the split only. So a run, a resumed one and any
mesh or number of processes have the same rows, which are then shuffled like other examples.

Legend of the shape suffixes: N examples, R rows, T steps of a row, M examples of the rows that are read.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from runner.config.schema_data import DatasetConfig
from runner.data.base import TARGETS, Array, ArraySource, ArraySpec, Dataset, DataSource, Rows, empty_arrays, in_memory
from runner.data.packing import LABEL, LABEL_WEIGHT, POSITIONS, SEGMENTS
from runner.errors import DataError, listed

_DIMS = ("sequence",)
# Packed rows of up to 1 GiB are made once and kept as arrays, which an engine may in turn keep on its devices. Larger
# splits are packed batch by batch.
_RAM_BYTES = 1 << 30
# Examples per read while lengths are counted and those arrays are filled; it bounds the temporary arrays.
_EXAMPLES_PER_READ = 1 << 12


def best_fit(lengths: Rows, row_length: int) -> list[list[int]]:
    """Returns the examples of each row by best-fit decreasing, a function of the lengths (N,), each at least 1.

    The longest example comes first. Each goes into the fullest row that has room for it, or into a new one. The rows
    and their examples are then put into the order of the examples, so that neighbors in a file stay near each other.
    """
    rows: list[list[int]] = []
    # Room -> rows with that much room, and all rooms that some row has, in increasing order.
    rows_by_room: dict[int, list[int]] = {}
    rooms: list[int] = []
    order = np.argsort(-lengths, kind="stable")
    for example, length in zip(order.tolist(), lengths[order].tolist(), strict=True):
        place = bisect_left(rooms, length)
        if place == len(rooms):
            row = len(rows)
            rows.append([])
            room = row_length
        else:
            room = rooms[place]
            row = rows_by_room[room].pop()
            if not rows_by_room[room]:
                del rooms[place]
        rows[row].append(example)
        room -= length
        if room:
            waiting = rows_by_room.setdefault(room, [])
            if not waiting:
                insort(rooms, room)
            waiting.append(row)
    return sorted(map(sorted, rows))


@dataclass(frozen=True, eq=False)
class PackedExamples(DataSource):
    """Rows of several examples.

    A row has the arrays of its examples one after the other, then padding, and

    - `segments`: number of the example within the row, from 1; 0 for padding;
    - `positions`: position within the example, from 0;
    - `label_weight`: 1, or what the dataset has; 0 for padding;
    - `label`, if the dataset has one array of tokens and no target: the next token, with weight 0 at the end of an
      example.
    """

    source: DataSource  # padded examples, with `segments`: 1 for a step and 0 for the padding after it
    specs: Mapping[str, ArraySpec]
    padding: Mapping[str, float]  # array -> its value in padding
    members: Rows  # (N,), the examples of all rows, row by row
    starts: Rows  # (R + 1,), where the members of each row start and end
    tokens: str | None  # the array that the label is made of; None: the dataset has a target

    @property
    def size(self) -> int:
        return len(self.starts) - 1

    def read(self, rows: Rows) -> dict[str, Array]:
        """Returns the arrays of some rows, each (len(rows), T, ...)."""
        counts = self.starts[rows + 1] - self.starts[rows]
        # The members of the rows, and the row and number within the row of each of them.
        row_of_member = np.repeat(np.arange(len(rows)), counts)
        number_in_row = _within(counts)
        members = self.members[self.starts[rows][row_of_member] + number_in_row]
        examples = self.source.read(members)
        lengths = np.asarray(examples[SEGMENTS]).sum(axis=1, dtype=np.int64)
        # The steps of the members, in the same order: where each comes from and where it goes.
        member_of_step = np.repeat(np.arange(len(members)), lengths)
        position = _within(lengths)
        row_of_step = row_of_member[member_of_step]
        steps_per_row = np.bincount(row_of_step, minlength=len(rows))
        place = (row_of_step, _within(steps_per_row))

        packed = empty_arrays(self.specs, len(rows))
        for name, array in packed.items():
            array[...] = self.padding.get(name, 0)
        for name, array in examples.items():
            packed[name][place] = array[member_of_step, position]
        packed[SEGMENTS][place] = number_in_row[member_of_step] + 1
        packed[POSITIONS][place] = position
        if LABEL_WEIGHT not in examples:
            packed[LABEL_WEIGHT][place] = 1.0
        if self.tokens is not None:
            has_next = position + 1 < lengths[member_of_step]
            next_position = position + has_next
            packed[LABEL][place] = examples[self.tokens][member_of_step, next_position] * has_next
            packed[LABEL_WEIGHT][place] *= has_next
        return packed


def packed_dataset(dataset: Dataset, config: DatasetConfig) -> Dataset:
    """Returns the dataset, of padded examples, with several examples per row, if the config asks for it."""
    if not config.pack:
        return dataset
    sources = {"train": dataset.train, "test": dataset.test}
    if dataset.validation is not None:
        sources["validation"] = dataset.validation
    selection = dict(dataset.selection)
    packed = {}
    for split, source in sources.items():
        packed[split], about = _packed(source, config, split)
        selection[split] = f"{selection.get(split, split)}: {about}"
    return replace(
        dataset,
        train=packed["train"],
        test=packed["test"],
        validation=packed.get("validation"),
        selection=selection,
    )


def _packed(source: DataSource, config: DatasetConfig, split: str) -> tuple[DataSource, str]:
    """Returns a split with several examples per row, and its description."""
    padding = config.pad or {}
    specs, tokens = _row_specs(source.specs, padding)
    (length,) = specs[SEGMENTS].shape
    lengths = _lengths(source)
    # An example without steps has nothing to learn from, and no row.
    examples = np.flatnonzero(lengths)
    members = [examples[row] for row in best_fit(lengths[examples], length)]
    if not members:
        raise DataError(
            f"dataset.pack: no example of split {split} has a step; fix the data, or select other examples"
        )
    starts = np.cumsum([0, *map(len, members)]).astype(np.int64)
    rows_of_split: DataSource = PackedExamples(source, specs, padding, np.concatenate(members), starts, tokens)
    if isinstance(source, ArraySource):
        rows_of_split = in_memory(rows_of_split, _RAM_BYTES, _EXAMPLES_PER_READ)
    share = int(lengths.sum()) / (len(members) * length)
    return rows_of_split, f"{source.size:,} examples in {len(members):,} rows of {length:,} steps, {share:.1%} full"


def _row_specs(
    specs: Mapping[str, ArraySpec], padding: Mapping[str, float]
) -> tuple[dict[str, ArraySpec], str | None]:
    """Returns the specs of packed rows, and the array that the label is made of, if there is no target."""
    shape = specs[SEGMENTS].shape
    whole = [name for name in specs if name not in padding and name != SEGMENTS]
    if whole:
        raise DataError(
            f"dataset.pack: the dataset has {listed(whole)} with one value per example, but a packed row has several "
            "examples; name only arrays of sequences in dataset.features, or remove dataset.pack"
        )
    rows = {}
    for name, spec in specs.items():
        rows[name] = replace(spec, dims=spec.dims or (*_DIMS, *[""] * (len(spec.shape) - 1)))
    integers = ArraySpec(shape, "int32", _DIMS)
    rows[SEGMENTS] = integers
    rows[POSITIONS] = integers
    tokens = None
    if not any(name in specs for name in TARGETS):
        (tokens, *others) = [name for name in specs if name != SEGMENTS and name != LABEL_WEIGHT]
        if others or np.dtype(specs[tokens].dtype).kind not in "iu" or specs[tokens].shape != shape:
            raise DataError(
                f"dataset.pack: the dataset has {listed([tokens, *others])} and no label; add an array called label, "
                "or name only the array of tokens, whose label is the next token"
            )
        rows[LABEL] = rows[tokens]
    rows[LABEL_WEIGHT] = ArraySpec(shape, "float32", _DIMS)
    return rows, tokens


def _lengths(source: DataSource) -> Rows:
    """Returns the number of steps of each example, (N,)."""
    lengths = []
    for start in range(0, source.size, _EXAMPLES_PER_READ):
        rows = np.arange(start, min(start + _EXAMPLES_PER_READ, source.size))
        lengths.append(np.asarray(source.read(rows)[SEGMENTS]).sum(axis=1, dtype=np.int64))
    return np.concatenate(lengths)


def _within(counts: Rows) -> Rows:
    """Returns 0, 1, ... for each group of a number of entries, one group after the other."""
    return np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)

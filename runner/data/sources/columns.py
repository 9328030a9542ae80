"""Columns of Arrow tables as arrays: what each column is, and how a piece of a table is decoded.

Numbers, booleans, lists and strings are read as in `dataset=arrays`. Columns of bytes are image files.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from runner.config.schema_data import DatasetConfig
from runner.data import images, ragged
from runner.data.base import IMAGE_DIMS, Array, ArraySpec
from runner.data.encode import (
    MAX_CATEGORIES,
    Column,
    StringColumn,
    category_numbers,
    check_categories,
    infer_spec,
    is_number,
    join_names,
    missing_value,
    numeric_array,
)
from runner.data.packing import SEGMENTS
from runner.data.sources.image_scan import common_size
from runner.data.table_rows import Block, EncodedImages, ImageDecoder
from runner.data.tables import convert_column, sequences
from runner.errors import DataError

# Kinds of columns that are not arrays, in place of a dtype.
_STRING = "string"
_IMAGE = "image"
_NOT_NUMBERS = (_STRING, _IMAGE)
# Sizes of images that a scan remembers per file. Two are enough to know that they differ; the message shows a range.
_MAX_SIZES = 64


@dataclass
class ScannedColumn:
    """What a scan found in one column of one file.

    Attributes:
      shape: of one example; empty for strings and images.
      dtype: of the array; `string` or `image` for these; empty if a column of `dataset.pad` has no steps.
      strings: the distinct strings, at most one more than a category may have.
      sizes: distinct [height, width] of the images, at most 64.
      gray: whether all images are gray.
      longest: steps of the longest sequence of a column of `dataset.pad`.
    """

    shape: list[int] = field(default_factory=list)
    dtype: str = ""
    strings: list[str] = field(default_factory=list)
    sizes: list[list[int]] = field(default_factory=list)
    gray: bool = True
    longest: int = 0


@dataclass
class ScannedTable:
    """What a scan found in one file.

    Attributes:
      rows: of the file.
      columns: by name.
    """

    rows: int = 0
    columns: dict[str, ScannedColumn] = field(default_factory=dict)

    def add(self, table: pa.Table, where: str, pad: Collection[str] = ()) -> None:
        """Adds a block of the file.

        Args:
          table: the selected columns of the block.
          where: the block, for errors.
          pad: columns of sequences of different lengths.

        Raises:
          DataError: a value is missing, or can't be represented; or rows have different shapes.
        """
        self.rows += table.num_rows
        for name in table.column_names:
            scanned = self.columns.setdefault(name, ScannedColumn())
            place = f"{where}, {name}"
            if name in pad:
                steps, lengths = sequences(place, table.column(name))
                array = numeric_array(place, steps)
                if len(steps):
                    _add_kind(scanned, place, array.shape[1:], str(array.dtype))
                scanned.longest = max(scanned.longest, int(lengths.max(initial=0)))
                continue
            content = _content(place, table.column(name))
            if isinstance(content, StringColumn):
                _add_strings(scanned, place, content)
            elif isinstance(content, EncodedImages):
                _add_images(scanned, place, content)
            else:
                array = numeric_array(place, content)
                _add_kind(scanned, place, array.shape[1:], str(array.dtype))


def _add_kind(scanned: ScannedColumn, place: str, shape: Sequence[int], dtype: str) -> None:
    if not scanned.dtype:
        scanned.shape = list(shape)
        scanned.dtype = dtype
    elif (list(shape), dtype) != (scanned.shape, scanned.dtype):
        raise DataError(
            f"{place}: {dtype} {list(shape)} per example, but {scanned.dtype} {scanned.shape} before; all rows need "
            "one shape and type"
        )


def _add_strings(scanned: ScannedColumn, place: str, column: StringColumn) -> None:
    _add_kind(scanned, place, (), _STRING)
    strings = sorted({*scanned.strings, *column.values})
    # One more than allowed shows that it is free text, which the whole table decides.
    scanned.strings = strings[: MAX_CATEGORIES + 1]


def _add_images(scanned: ScannedColumn, place: str, column: EncodedImages) -> None:
    _add_kind(scanned, place, (), _IMAGE)
    sizes = {(height, width) for height, width in scanned.sizes}
    for row in range(len(column)):
        try:
            header = images.read_header(column[row])
        except ValueError as error:
            raise DataError(
                f"{place}: row {row + 1} is not a readable image ({error}); fix or remove that row"
            ) from error
        scanned.gray = scanned.gray and header.gray
        if len(sizes) < _MAX_SIZES:
            sizes.add((header.height, header.width))
    scanned.sizes = [list(size) for size in sorted(sizes)]


def _content(place: str, column: pa.ChunkedArray) -> Column | EncodedImages:
    """Returns a column as an array, strings or images."""
    kind = column.type
    if pa.types.is_struct(kind) and "bytes" in kind.names:
        # An image as Hugging Face's libraries store it: {bytes, path}.
        column = pc.struct_field(column, "bytes")
        kind = column.type
    if not (pa.types.is_binary(kind) or pa.types.is_large_binary(kind)):
        return convert_column(place, column)
    if column.null_count:
        rows = np.flatnonzero(column.is_null().to_numpy())
        raise missing_value(place, int(rows[0]), " has no image bytes")
    whole = column.cast(pa.large_binary()).combine_chunks()
    _, offsets, content = whole.buffers()
    starts = np.frombuffer(offsets, np.int64)[whole.offset : whole.offset + len(whole) + 1]
    data = np.frombuffer(content or b"", np.uint8)[starts[0] : starts[-1]]
    return EncodedImages(data, starts - starts[0])


@dataclass(frozen=True, eq=False)
class Columns:
    """The columns of a dataset, the same in every file.

    Attributes:
      specs: of the arrays, by name.
      raw_names: array -> name of its column.
      categories: integer array -> the strings that its numbers mean.
      classes: integer array -> names of its classes, if the file has the numbers.
      decoders: of the columns of images.
      padding: column of sequences -> the value that pads them at their end.
      has_segments: adds the array `segments`, 1 for a step and 0 for padding, of these columns.
    """

    specs: Mapping[str, ArraySpec]
    raw_names: Mapping[str, str]
    categories: Mapping[str, tuple[str, ...]]
    classes: Mapping[str, tuple[str, ...]]
    decoders: Mapping[str, ImageDecoder]
    padding: Mapping[str, float] = field(default_factory=dict)
    has_segments: bool = False

    def raw_names_of(self, name: str | None) -> Mapping[str, str]:
        """Returns array -> name of its column, of all or of those that one array is made of."""
        if name is None:
            return self.raw_names
        if self.has_segments and name == SEGMENTS:
            name = next(iter(self.padding))
        return {name: self.raw_names[name]}

    def decode(self, table: pa.Table, where: str) -> Block:
        """Decodes a piece of a table.

        Args:
          table: has some of the columns, by the names of the arrays.
          where: the piece, for errors.

        Raises:
          DataError: a value is missing, or does not fit its column's spec.
        """
        block: dict[str, Array | EncodedImages] = {}
        lengths: dict[str, Array] = {}
        for name in table.column_names:
            place = f"{where}, {name}"
            if name in self.padding:
                steps, lengths[name] = sequences(place, table.column(name))
                block[name] = self._padded(name, place, steps, lengths[name])
                continue
            content = _content(place, table.column(name))
            if isinstance(content, StringColumn):
                block[name] = category_numbers(place, content, self.categories[name])
            elif isinstance(content, EncodedImages):
                block[name] = content
            else:
                block[name] = self._numbers(name, place, content)
        if self.has_segments and lengths:
            first, *others = lengths
            ragged.check_equal_lengths(lengths[first], first, {name: lengths[name] for name in others}, where)
            (length,) = self.specs[SEGMENTS].shape
            block[SEGMENTS] = (np.arange(length) < lengths[first][:, None]).astype(np.int32)
        return block

    def _padded(self, name: str, place: str, steps: Array, lengths: Array) -> Array:
        """Returns sequences (N, T, ...), padded at their end."""
        spec = self.specs[name]
        padded = np.full((len(lengths), *spec.shape), self.padding[name], spec.dtype)
        if not len(steps):
            return padded
        array = numeric_array(place, steps)
        if array.shape[1:] != spec.shape[1:]:
            raise DataError(
                f"{place}: shape {list(array.shape[1:])} per step, but {list(spec.shape[1:])} in other rows"
            )
        too_long = np.flatnonzero(lengths > spec.shape[0])
        if len(too_long):
            row = int(too_long[0])
            raise DataError(
                f"{place}: row {row + 1} has {lengths[row]} steps, more than {spec.shape[0]}; shorten it, or train "
                f"with dataset.pad_length={lengths.max()}"
            )
        # In the order of the rows, as the steps are.
        padded[np.arange(spec.shape[0]) < lengths[:, None]] = array
        return padded

    def _numbers(self, name: str, place: str, content: Array) -> Array:
        spec = self.specs[name]
        array = numeric_array(place, content)
        if array.shape[1:] != spec.shape:
            raise DataError(
                f"{place}: shape {list(array.shape[1:])} per example, but {list(spec.shape)} in other rows"
            )
        count = len(self.classes.get(name, ()))
        outside = array[(array < 0) | (array >= count)] if count else array[:0]
        if len(outside):
            raise DataError(
                f"{place} has the class {outside[0]}, but there are {count} classes, from 0; the labels may be "
                "withheld: select a split with labels"
            )
        # A copy, because Arrow's memory can't be written, which an augmentation may do.
        return array.astype(spec.dtype, copy=True)


def combine(
    scans: Mapping[str, ScannedTable],
    config: DatasetConfig,
    recorded: Mapping[str, tuple[str, ...]],
    raw_names: Mapping[str, str],
    classes: Mapping[str, tuple[str, ...]],
    recorded_lengths: Mapping[str, int],
) -> Columns:
    """Returns the columns that fit all files.

    Args:
      scans: file -> what the scan found; at least one. A file without rows has any columns.
      config: size and channels of images.
      recorded: categories of the run that the data is read for; empty: they are chosen here.
      raw_names: array -> name of its column.
      classes: integer array -> names of its classes, from the files' metadata.
      recorded_lengths: steps of the padded columns of the run that the data is read for.

    Raises:
      ConfigError: the images have several sizes, and the config has none.
      DataError: no file has rows, files differ in the type or shape of a column, or a column of strings has no
        categories.
    """
    first_of_all = next(iter(scans))
    scans = {file: scan for file, scan in scans.items() if scan.rows}
    if not scans:
        raise DataError(f"{first_of_all} has no examples")
    padding = config.pad or {}
    ragged.check_names(padding, raw_names)
    lengths: dict[str, int] = {}
    for name in padding:
        longest = max(scan.columns[name].longest for scan in scans.values())
        lengths[name] = recorded_lengths.get(name) or config.pad_length or max(1, longest)
        for file, scan in scans.items():
            if scan.columns[name].longest > lengths[name]:
                raise DataError(
                    f"{file}, {name}: a row has {scan.columns[name].longest} steps, more than {lengths[name]}; "
                    f"shorten it, or train with dataset.pad_length={longest}"
                )
    specs: dict[str, ArraySpec] = {}
    categories: dict[str, tuple[str, ...]] = {}
    decoders: dict[str, ImageDecoder] = {}
    for name in raw_names:
        columns = {file: scan.columns[name] for file, scan in scans.items()}
        if name in padding:
            columns = _with_steps(columns, padding[name])
        first_file, first = next(iter(columns.items()))
        for file, column in columns.items():
            are_numbers = column.dtype not in _NOT_NUMBERS and first.dtype not in _NOT_NUMBERS
            if column.shape != first.shape or (column.dtype != first.dtype and not are_numbers):
                raise DataError(
                    f"{file}, {name}: {column.dtype} {column.shape} per example, but {first.dtype} {first.shape} in "
                    f"{first_file}; all files need one shape and type"
                )
        if name in recorded and first.dtype != _STRING and name not in classes:
            raise DataError(
                f"{first_file}, {name} has numbers, but the run's data had strings: {join_names(recorded[name])}"
            )
        if first.dtype == _STRING:
            rows = sum(scan.rows for scan in scans.values())
            categories[name] = recorded.get(name) or _categories(f"{first_file}, {name}", columns, rows)
            specs[name] = ArraySpec((), "int32", names=categories[name])
        elif first.dtype == _IMAGE:
            decoders[name] = _image_decoder(columns, config)
            specs[name] = ArraySpec((*decoders[name].size, decoders[name].channels), "uint8", IMAGE_DIMS)
        elif name in padding:
            dtype = np.result_type(*(np.dtype(column.dtype) for column in columns.values()))
            dtype = np.dtype(np.float32 if dtype.kind == "f" else np.int32)
            if dtype.kind == "i" and not float(padding[name]).is_integer():
                raise DataError(
                    f"{first_file}, {name}: integers can't be padded with {padding[name]:g}; pad them with an integer"
                )
            specs[name] = infer_spec(np.empty((0, lengths[name], *first.shape), dtype))
        else:
            dtype = np.result_type(*(np.dtype(column.dtype) for column in columns.values()))
            if dtype.kind == "f":
                dtype = np.dtype(np.float32)
            specs[name] = infer_spec(np.empty((0, *first.shape), dtype), classes.get(name, ()))
    if config.pack:
        specs[SEGMENTS] = ArraySpec((max(lengths.values()),), "int32")
    return Columns(specs, raw_names, categories, classes, decoders, padding, config.pack)


def _with_steps(columns: Mapping[str, ScannedColumn], padding: float) -> dict[str, ScannedColumn]:
    """Returns the columns that have steps, by file; if none has, the value of padding decides the type."""
    with_steps = {file: column for file, column in columns.items() if column.dtype}
    if with_steps:
        return with_steps
    dtype = "int32" if float(padding).is_integer() else "float32"
    return {file: ScannedColumn(dtype=dtype) for file in columns}


def _categories(place: str, columns: Mapping[str, ScannedColumn], rows: int) -> tuple[str, ...]:
    strings: set[str] = set()
    for column in columns.values():
        strings.update(column.strings)
    numbers = [string for string in strings if is_number(string)]
    if numbers and len(numbers) < len(strings):
        other = min(strings - set(numbers))
        raise DataError(
            f"{place} has the string {other!r}, but other rows are numbers; fix that row, or leave the column out"
        )
    check_categories(place, len(strings), rows)
    return tuple(sorted(strings))


def _image_decoder(columns: Mapping[str, ScannedColumn], config: DatasetConfig) -> ImageDecoder:
    channels = config.channels
    if channels is None:
        channels = 3
        if all(column.gray for column in columns.values()):
            channels = 1
    sizes = {(height, width) for column in columns.values() for height, width in column.sizes}
    return ImageDecoder(common_size(config, sizes), channels)

# ruff: noqa: D102 - a source overrides what DataSource documents
"""`parquet` and `huggingface`: tables whose rows are read alone. Those of Arrow files need not fit into memory.

The first row decides what a column is. Numbers, booleans, lists and strings are read as in `dataset=arrays`; columns
of bytes are image files. A value that is missing is found at the start, any other unusable one when it is read.
Nothing is cached here: the system caches the pages of the files.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from runner.config.schema_data import DatasetConfig
from runner.data.base import Array, ArraySpec, DataSource, Encoding, FullDataset, Rows, empty_arrays, take
from runner.data.digest import of_files
from runner.data.encode import (
    StringColumn,
    are_strings,
    categories_of,
    category_numbers,
    common_spec,
    missing_value,
    numeric_array,
)
from runner.data.image_files import ImageDecoder, decoder_of
from runner.data.sources import arrow_files
from runner.data.sources.arrow_files import SplitTable, open_table
from runner.data.tables import check_same_columns, convert_column, select
from runner.errors import DataError, listed

# The largest array that `TableRows.column` returns: 64 million class numbers, for the counts of a report.
_COLUMN_BYTES = 1 << 28


@dataclass(frozen=True, eq=False)
class Columns:
    """The columns of a dataset, the same in every split."""

    specs: Mapping[str, ArraySpec]
    raw_names: Mapping[str, str]  # array -> its column
    categories: Mapping[str, tuple[str, ...]]  # integer array -> the strings that its numbers mean
    classes: Mapping[str, tuple[str, ...]]  # integer array -> names of its classes, if the file has the numbers
    decoders: Mapping[str, ImageDecoder]

    def numbers(self, name: str, where: str, column: pa.ChunkedArray) -> Array:
        """Returns a column of numbers or strings as an array."""
        content = convert_column(where, column)
        if isinstance(content, StringColumn):
            return category_numbers(where, content, self.categories[name])
        spec = self.specs[name]
        array = numeric_array(where, content)
        if array.shape[1:] != spec.shape:
            raise DataError(
                f"{where}: shape {list(array.shape[1:])} per example, but {list(spec.shape)} in other rows; use one "
                "shape, or pad the lists first"
            )
        count = len(self.classes.get(name, ()))
        if count:
            outside = array[(array < 0) | (array >= count)]
            if len(outside):
                raise DataError(
                    f"{where} has the class {outside[0]}, but there are {count} classes, from 0; the labels may be "
                    "withheld: select a split with labels"
                )
        # A copy, because Arrow's memory can't be written, which an augmentation may do.
        return array.astype(spec.dtype, copy=True)


@dataclass(frozen=True, eq=False)
class TableRows(DataSource):
    """Examples that are rows of a table."""

    table: SplitTable
    columns: Columns

    @property
    def specs(self) -> Mapping[str, ArraySpec]:
        return self.columns.specs

    @property
    def size(self) -> int:
        return self.table.size

    def read(self, rows: Rows) -> dict[str, Array]:
        """Returns the arrays of some examples, read in the order of the files."""
        if not len(rows):
            return empty_arrays(self.specs, 0)
        sorted_rows, positions = np.unique(rows, return_inverse=True)
        return take(self._arrays(sorted_rows, self.columns.raw_names), positions)

    @property
    def one_at_a_time(self) -> bool:
        """Whether it has images, which workers decode."""
        return bool(self.columns.decoders)

    def example_name(self, row: int) -> str:
        return self.table.place(row)

    def original(self, row: int) -> dict[str, Array]:
        return take(self._arrays(np.array([row]), self.columns.raw_names, resize=False), 0)

    def column(self, name: str) -> Array | None:
        """Returns one complete array, or None if it is large or has images."""
        spec = self.specs[name]
        if spec.is_image or self.size * spec.bytes > _COLUMN_BYTES:
            return None
        return self._arrays(np.arange(self.size), [name])[name]

    def _arrays(self, rows: Rows, names: Collection[str], *, resize: bool = True) -> dict[str, Array]:
        """Returns arrays of some rows, sorted and each once; an error names the row that has a bad value."""
        try:
            return self._decoded(rows, names, resize=resize)
        except DataError:
            for row in rows:
                try:
                    self._decoded(np.array([row]), names, resize=resize)
                except DataError as error:
                    # Of the one row that was read; its number in the file is in the message already.
                    raise DataError(str(error).replace(": row 1", "", 1)) from error
            raise

    def _decoded(self, rows: Rows, names: Collection[str], *, resize: bool) -> dict[str, Array]:
        columns = self.columns
        arrays: dict[str, Array] = {}
        first_row = self.table.place(int(rows[0]))
        for name in names:
            raw_name = columns.raw_names[name]
            column = self.table.take(raw_name, rows)
            if name in columns.decoders:
                arrays[name] = self._images(name, column, rows, resize=resize)
            else:
                arrays[name] = columns.numbers(name, f"{first_row}, {raw_name}", column)
        return arrays

    def _images(self, name: str, column: pa.ChunkedArray, rows: Rows, *, resize: bool) -> Array:
        decoder = self.columns.decoders[name]
        decode = decoder.resized if resize else decoder.original
        decoded = []
        for row, file in zip(rows, _image_bytes(column), strict=True):
            try:
                decoded.append(decode(file))
            except ValueError as error:
                where = f"{self.table.place(int(row))}: the image {name}"
                raise DataError(f"{where} can't be decoded ({error}); fix or remove that row") from error
        return np.stack(decoded)


def load(config: DatasetConfig, encoding: Encoding | None = None) -> FullDataset:
    """Maps the files."""
    assert config.path is not None
    files = arrow_files.find(config.path)
    if config.name == "huggingface":
        arrow_files.check_one_configuration(config.path, files)
    name = Path(config.path).expanduser().absolute().name
    return load_files(files, config, encoding or Encoding(), name, config.path)


def load_files(
    files: Mapping[str, Sequence[Path]], config: DatasetConfig, encoding: Encoding, name: str, source: str
) -> FullDataset:
    """Opens the files of each split."""
    opened = {}
    columns_of = {}
    for path in chain.from_iterable(files.values()):
        opened[path] = open_table(path)
        columns_of[path] = opened[path].column_names
    if config.features is None:
        check_same_columns(columns_of)
    first, *others = columns_of.values()
    shared = set(first).intersection(*others)
    common = [column for column in first if column in shared]
    raw_names = select(common, config.features, str(next(iter(opened))))
    tables = {}
    for split, split_files in files.items():
        selected = [opened[file].select(list(raw_names.values())) for file in split_files]
        tables[split] = SplitTable(split_files, selected)
        if not tables[split].size:
            raise DataError(f"{split_files[0]} has no examples")
    classes = _classes(opened, raw_names, encoding)
    columns = _columns(tables, raw_names, classes, config, encoding)
    return FullDataset(
        name=name,
        version="",
        splits={split: TableRows(table, columns) for split, table in tables.items()},
        digest=of_files(files),
        source=source,
        encoding=replace(encoding, categories={**columns.categories, **classes}),
    )


def _classes(
    opened: Mapping[Path, pa.Table], raw_names: Mapping[str, str], encoding: Encoding
) -> dict[str, tuple[str, ...]]:
    """Returns the classes of each array that has numbers of classes, which must be those of all files and of the run.

    A file without names fits any others.
    """
    common: dict[str, tuple[str, ...]] = {}
    owner: dict[str, str] = {}
    for path, table in opened.items():
        names_of = arrow_files.classes_of(table.schema)
        for array, column in raw_names.items():
            if column not in names_of:
                continue
            recorded = encoding.categories.get(array)
            names = names_of[column]
            expected = recorded or common.get(array, names)
            if names != expected:
                others = "the run" if recorded else owner[array]
                raise DataError(
                    f"{path}, {column}: its numbers mean the classes {listed(names)}, but those of {others} mean "
                    f"{listed(expected)}; store the numbers in that order of classes"
                )
            common.setdefault(array, names)
            owner.setdefault(array, str(path))
    return common


def _columns(
    tables: Mapping[str, SplitTable],
    raw_names: Mapping[str, str],
    classes: Mapping[str, tuple[str, ...]],
    config: DatasetConfig,
    encoding: Encoding,
) -> Columns:
    specs: dict[str, ArraySpec] = {}
    categories: dict[str, tuple[str, ...]] = {}
    decoders: dict[str, ImageDecoder] = {}
    for name, raw_name in raw_names.items():
        pieces = {}
        for table in tables.values():
            pieces[f"{table.files[0]}, {raw_name}"] = table.columns[raw_name]
            _check_complete(table, raw_name)
        where, first = next(iter(pieces.items()))
        if _is_image(first.type):
            decoders[name] = decoder_of(config, _image_bytes(first.slice(0, 1))[0], f"{where}: row 1")
            specs[name] = decoders[name].spec
        else:
            recorded = None if name in classes else encoding.categories.get(name)
            specs[name] = _spec(pieces, recorded, classes.get(name, ()))
            if specs[name].names and name not in classes:
                categories[name] = specs[name].names
    return Columns(specs, raw_names, categories, classes, decoders)


def _check_complete(table: SplitTable, raw_name: str) -> None:
    start = 0
    for chunk in table.columns[raw_name].chunks:
        if chunk.null_count:
            row = start + int(np.flatnonzero(chunk.is_null())[0])
            raise DataError(f"{table.place(row)}, {raw_name} is missing; fill it in or remove that row")
        start += len(chunk)


def _spec(
    pieces: Mapping[str, pa.ChunkedArray], recorded: tuple[str, ...] | None, classes: Sequence[str]
) -> ArraySpec:
    """Returns the spec of a column of numbers or strings, which is in each split."""
    firsts = {place: convert_column(place, piece.slice(0, 1)) for place, piece in pieces.items()}
    are_strings(firsts, recorded)
    numbers = {}
    for place, content in firsts.items():
        if not isinstance(content, StringColumn):
            numbers[place] = numeric_array(place, content)
    if numbers:
        return common_spec(numbers, classes)
    if recorded is None:
        strings: set[str] = set()
        for place, piece in pieces.items():
            for chunk in piece.chunks:
                content = convert_column(place, pa.chunked_array([chunk]))
                assert isinstance(content, StringColumn), "the first row is a string"
                strings.update(content.values)
        recorded = categories_of(next(iter(pieces)), strings, sum(map(len, pieces.values())))
    return ArraySpec((), "int32", names=recorded)


def _is_image(kind: pa.DataType) -> bool:
    """Returns whether a column has image files, as bytes or as Hugging Face's libraries store them: {bytes, path}."""
    is_struct = pa.types.is_struct(kind) and "bytes" in kind.names
    return is_struct or pa.types.is_binary(kind) or pa.types.is_large_binary(kind)


def _image_bytes(column: pa.ChunkedArray) -> list[bytes]:
    if pa.types.is_struct(column.type):
        column = pc.struct_field(column, "bytes")
    if column.null_count:
        raise missing_value("a column of images", int(np.flatnonzero(column.is_null())[0]), " has no image bytes")
    files: list[bytes] = column.to_pylist()
    return files

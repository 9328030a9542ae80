"""Reads one file of a user's: its columns, or its arrays, by name. Nothing in a file is ever unpickled."""

from __future__ import annotations

import re
import zipfile
import zlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet
from numpy.lib.npyio import NpzFile

from runner.data.base import Array
from runner.data.encode import Column, as_column, by_name, cleaned, is_number, missing, words
from runner.errors import DataError

_BLOCK = 1 << 20  # bytes of a .csv that are parsed at once
_LARGEST_BLOCK = 1 << 30
_INDEX = re.compile(r"__index_level_\d+__")  # what pandas writes beside a frame's columns
_BROKEN = (OSError, ValueError, EOFError, zipfile.BadZipFile, zlib.error, pa.ArrowException)


def read(path: Path, wanted: Sequence[str] | None = None) -> dict[str, Column]:
    """Reads a file.

    Args:
      path: a .npz, .npy, .csv or .parquet.
      wanted: names of what is taken, as they are in the file or as they become; None: all.

    Returns:
      Columns or arrays by name, in the file's order.

    Raises:
      DataError: it can't be read, holds Python objects, or a value is missing; names the file, row and column.
    """
    kind = path.suffix.lower()
    try:
        if kind == ".npy":
            columns = [(path.stem, _stored(path, np.load(path, mmap_mode="r", allow_pickle=False)))]
        elif kind == ".npz":
            with _archive(path) as archive:
                taken = [name for name in archive.files if _takes(wanted, name)]
                columns = [(name, _stored(f"{path}, {name}", archive[name])) for name in taken]
        else:
            columns = _table(path, wanted)
    except _BROKEN as error:
        raise DataError(f"{path} can't be read: {_reason(error)}") from error
    return by_name((one for one in columns if _takes(wanted, one[0])), str(path))


def names(path: Path) -> list[str]:
    """Returns the names of what a file that can be read holds, as they become."""
    kind = path.suffix.lower()
    if kind == ".npy":
        found = [path.stem]
    elif kind == ".npz":
        with _archive(path) as archive:
            found = list(archive.files)
    elif kind == ".parquet":
        found = pyarrow.parquet.read_schema(path).names
    else:
        with pyarrow.csv.open_csv(path) as reader:
            found = reader.schema.names
    return [cleaned(name) for name in found]


def _takes(wanted: Sequence[str] | None, text: str) -> bool:
    return wanted is None or text in wanted or cleaned(text) in map(cleaned, wanted)


def _reason(error: Exception) -> str:
    text = " ".join(str(error).split())
    if "allow_pickle" in text or "Python objects" in text or "Object arrays" in text:
        return "it holds Python objects, which are never unpickled; write arrays of numbers, as by numpy.asarray"
    return text[:300] or type(error).__name__


def _archive(path: Path) -> NpzFile:
    found = np.load(path, allow_pickle=False)
    if not isinstance(found, NpzFile):
        raise DataError(f"{path} is no archive of arrays; write it by numpy.savez, or call it .npy")
    return found


def _stored(where: Path | str, array: object) -> Column:
    if not isinstance(array, np.ndarray):  # an archive called .npy, or another file in one
        raise DataError(f"{where} is no array; write it by numpy.save or numpy.savez")
    return as_column(str(where), array)


def _table(path: Path, wanted: Sequence[str] | None) -> list[tuple[str, Column]]:
    if path.suffix.lower() == ".parquet":
        table = pyarrow.parquet.read_table(path)
    else:
        table = _parsed(path)
        head = table.column_names
        if head and all(map(is_number, head)):
            raise DataError(f"{path}: the first line holds numbers, and must name the columns")
        if len(head) == 1 and (sign := next((one for one in ";\t|" if one in head[0]), "")):
            raise DataError(f"{path}: {sign!r} stands between its columns; write it with commas")
    if not table.num_rows:
        raise DataError(f"{path} has no examples")
    columns = []
    for name in table.column_names:
        if not _INDEX.fullmatch(name) and _takes(wanted, name):
            columns.append((name, _column(f"{path}, {name}", table.column(0))))
        table = table.remove_column(0)  # what a column took is given back before the next one is converted
    return columns


def _parsed(path: Path) -> pa.Table:
    """Parses a .csv block by block, of which only what becomes of it stays in memory.

    The first block tells the types. A later block that does not fit them needs wider ones, which only the whole file
    tells. A row that is longer than a block needs a larger block.
    """
    try:
        with pyarrow.csv.open_csv(path, read_options=pyarrow.csv.ReadOptions(block_size=_BLOCK)) as reader:
            batches = [_smaller(batch) for batch in reader]
        if batches:
            return pa.Table.from_batches(batches)
    except pa.ArrowInvalid:
        pass
    size = min(max(path.stat().st_size + 1, _BLOCK), _LARGEST_BLOCK)
    return pyarrow.csv.read_csv(path, read_options=pyarrow.csv.ReadOptions(block_size=size))


def _smaller(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Returns a batch with numbers of float32, as arrays have them, and each word of a column once."""
    columns = []
    for column in batch.columns:
        if pa.types.is_float64(column.type):
            columns.append(_single(column))
        elif pa.types.is_string(column.type):
            columns.append(column.dictionary_encode())
        else:
            columns.append(column)
    return pa.RecordBatch.from_arrays(columns, names=batch.schema.names)


def _single(column: pa.Array | pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
    """Returns float64 as float32; what is beyond that becomes infinite, and is refused as such."""
    return pc.cast(column, pa.float32(), safe=False)


def _column(place: str, column: pa.ChunkedArray) -> Column:
    kind = column.type
    if column.null_count:
        raise missing(place, int(np.flatnonzero(column.is_null().to_numpy())[0]))
    if pa.types.is_dictionary(kind) or pa.types.is_string(kind) or pa.types.is_large_string(kind):
        encoded = pc.dictionary_encode(column.cast(pa.string())).combine_chunks()
        return words(place, [str(one) for one in encoded.dictionary.to_pylist()], encoded.indices.to_numpy())
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        return _vectors(place, column)
    if pa.types.is_decimal(kind):
        column = column.cast(pa.float64())
        kind = pa.float64()
    if not (pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)):
        raise DataError(
            f"{place} holds values of type {kind}; turn them into numbers or words, or leave it out by naming the "
            "others in dataset.features"
        )
    if pa.types.is_float64(kind):
        column = _single(column)
    plain: Array = column.to_numpy()
    return plain


def _vectors(place: str, column: pa.ChunkedArray) -> Array:
    """Reads lists of numbers that are all of one length, as a vector a row."""
    lengths = pc.list_value_length(column).to_numpy()
    if len(lengths) and (lengths != lengths[0]).any():
        row = int(np.flatnonzero(lengths != lengths[0])[0])
        raise DataError(
            f"{place}: row {row + 1} holds {lengths[row]} numbers and row 1 {lengths[0]}; all need as many"
        )
    flat = pc.list_flatten(column)
    if flat.null_count or not (pa.types.is_integer(flat.type) or pa.types.is_floating(flat.type)):
        raise DataError(f"{place} holds lists of {flat.type}, or of what is missing; lists of numbers are needed")
    values: Array = flat.to_numpy().reshape(len(column), -1)
    return values

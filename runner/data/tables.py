"""Reads one file of a user's: its columns, or its arrays, by name. Nothing in a file is ever unpickled."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet

from runner.config.errors import DataError
from runner.data.base import Array
from runner.data.encode import Column, Words, name_of

_LARGEST_BLOCK = 1 << 30  # bytes of a .csv by which its columns' types are told
_SMALLEST_BLOCK = 1 << 20
_MISSING = "fill it in or leave that row out"


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
    try:
        if path.suffix.lower() == ".npy":
            columns: dict[str, Column] = {path.stem: _array(path, np.load(path, mmap_mode="r", allow_pickle=False))}
        elif path.suffix.lower() == ".npz":
            with np.load(path, allow_pickle=False) as archive:
                taken = [name for name in archive.files if _takes(wanted, name)]
                columns = {name: _array(f"{path}, {name}", archive[name]) for name in taken}
        else:
            columns = _table(path, wanted)
    except (OSError, ValueError, EOFError, pa.ArrowException) as error:
        raise DataError(f"{path} can't be read: {_reason(error)}") from error
    found: dict[str, Column] = {}
    for text, column in columns.items():
        name = name_of(text, str(path))
        if not _takes(wanted, text):
            continue
        if name in found:
            raise DataError(f"{path}: two columns are called {name!r}; rename one of them")
        found[name] = column
    return found


def names(path: Path) -> list[str]:
    """Returns the names of what a file holds, as they become."""
    if path.suffix.lower() == ".npy":
        return [name_of(path.stem, str(path))]
    if path.suffix.lower() == ".npz":
        with np.load(path, allow_pickle=False) as archive:
            return [name_of(name, str(path)) for name in archive.files]
    return [name_of(name, str(path)) for name in _header(path)]


def _takes(wanted: Sequence[str] | None, text: str) -> bool:
    return wanted is None or text in wanted or re.sub(r"\W+", "_", text.strip()).strip("_") in wanted


def _reason(error: Exception) -> str:
    text = " ".join(str(error).split())
    if "allow_pickle" in text or "Python objects" in text or "Object arrays" in text:
        return "it holds Python objects, which are never unpickled; write arrays of numbers, as by numpy.asarray"
    return text[:300] or type(error).__name__


def _array(where: Path | str, array: Array) -> Column:
    if array.ndim == 0:
        raise DataError(f"{where} is a single value; an array needs one entry an example, (N, ...)")
    if array.dtype.kind not in "US":
        return array
    if array.ndim > 1:
        raise DataError(f"{where} holds words in {array.ndim} dims; one word an example is needed")
    values, codes = np.unique(array.astype(np.str_), return_inverse=True)
    _check_words(str(where), [str(value) for value in values], codes)
    return Words([str(value) for value in values], codes)


def _check_words(place: str, values: Sequence[str], codes: Array) -> None:
    empty = [number for number, value in enumerate(values) if not value.strip()]
    if empty:
        row = int(np.flatnonzero(np.isin(codes, empty))[0])
        raise DataError(f"{place}: row {row + 1} is missing; {_MISSING}")


def _header(path: Path) -> list[str]:
    if path.suffix.lower() == ".parquet":
        return [str(name) for name in pyarrow.parquet.read_schema(path).names]
    with pyarrow.csv.open_csv(path) as reader:
        return [str(name) for name in reader.schema.names]


def _table(path: Path, wanted: Sequence[str] | None) -> dict[str, Column]:
    if path.suffix.lower() == ".parquet":
        table = pyarrow.parquet.read_table(path)
    else:
        # Types are told by the first block alone, so the first block is all of it.
        size = min(max(path.stat().st_size + 1, _SMALLEST_BLOCK), _LARGEST_BLOCK)
        table = pyarrow.csv.read_csv(path, read_options=pyarrow.csv.ReadOptions(block_size=size))
        if len(table.column_names) > 0 and all(_is_number(name) for name in table.column_names):
            raise DataError(f"{path}: the first line holds numbers, and must name the columns")
    if not table.num_rows:
        raise DataError(f"{path} has no examples")
    columns: dict[str, Column] = {}
    for name, column in zip(table.column_names, table.columns, strict=True):
        if _takes(wanted, name):
            if name in columns:
                raise DataError(f"{path}: two columns are called {name!r}; rename one of them")
            columns[name] = _column(f"{path}, {name}", column)
    return columns


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _column(place: str, column: pa.ChunkedArray) -> Column:
    kind = column.type
    if column.null_count:
        row = int(np.flatnonzero(column.is_null().to_numpy())[0])
        raise DataError(f"{place}: row {row + 1} is missing; {_MISSING}")
    if pa.types.is_dictionary(kind) or pa.types.is_string(kind) or pa.types.is_large_string(kind):
        encoded = pc.dictionary_encode(column.cast(pa.string())).combine_chunks()
        values, codes = [str(one) for one in encoded.dictionary.to_pylist()], encoded.indices.to_numpy()
        _check_words(place, values, codes)
        return Words(values, codes)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        return _vectors(place, column)
    if pa.types.is_decimal(kind):
        column, kind = column.cast(pa.float64()), pa.float64()
    if not (pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)):
        raise DataError(
            f"{place} holds values of type {kind}; turn them into numbers or words, or leave it out by naming the "
            "others in dataset.features"
        )
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

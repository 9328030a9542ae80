"""Tables of Arrow: their columns by name, and as arrays of numbers or strings."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv

from runner.config.texts import is_number
from runner.data.base import Array
from runner.data.encode import Column, by_clean_name, cleaned, missing_value, string_column
from runner.errors import DataError, did_you_mean, in_one_line, invalid, listed

# The types of a .csv's columns are those of its first block. It has the whole file, up to half of PyArrow's limit.
_MAX_BLOCK_BYTES = 1 << 30
# Delimiters that a file with a single column was probably written with.
_OTHER_DELIMITERS = ";\t|"
# Characters of a library's error that a message shows.
_MAX_REASON = 300
# pandas stores a frame's index in columns of this name.
_PANDAS_INDEX = re.compile(r"__index_level_\d+__")


def read_csv(path: Path) -> pa.Table:
    """Parses a .csv file."""
    options = pyarrow.csv.ReadOptions(block_size=min(path.stat().st_size + 1, _MAX_BLOCK_BYTES))
    table = pyarrow.csv.read_csv(path, read_options=options)
    header = table.column_names
    if header and all(map(is_number, header)):
        raise DataError(f"{path} has numbers in its first line; add a line with the names of the columns")
    for delimiter in _OTHER_DELIMITERS:
        if len(header) == 1 and delimiter in header[0]:
            raise DataError(f"{path} uses {delimiter!r} as its delimiter; save it as comma-separated")
    return table


def select(names: Sequence[str], features: Sequence[str] | None, where: str) -> dict[str, str]:
    """Returns array -> name of its column, in the order of the file.

    `features` are names as in the file or cleaned; None means all columns but the index of a pandas frame.
    """
    known = [name for name in names if not _PANDAS_INDEX.fullmatch(name)]
    chosen = set(known)
    if features is not None:
        chosen = set()
        for feature in features:
            matching = [name for name in known if cleaned(feature) == cleaned(name)]
            if feature in known:
                matching = [feature]
            if len(matching) > 1:
                problem = f"means several columns ({listed(matching)})"
                fix = "write the name of one of them as it is in the file"
                raise invalid("dataset.features", feature, problem=problem, fix=fix)
            if not matching:
                problem = f"unknown column (the columns: {listed(known)})"
                fix = did_you_mean(feature, map(cleaned, known), f"set dataset.features=[{','.join(known[:2])}]")
                raise invalid("dataset.features", feature, problem=problem, fix=fix)
            chosen.add(matching[0])
    return by_clean_name([(name, name) for name in known if name in chosen], where)


def concatenated(tables: Sequence[pa.Table], where: str) -> pa.Table:
    """Returns tables of the same columns as one; nothing is copied where their types are the same."""
    try:
        return pa.concat_tables(tables, promote_options="permissive")
    except pa.ArrowException as error:
        raise DataError(f"{where}: the files can't be read as one table: {reason(error)}") from error


def check_same_columns(columns: Mapping[Path, Iterable[str]]) -> None:
    """Checks that files, which are read as one table, have the same columns."""
    for path, names in columns.items():
        first = next(iter(columns))
        different = sorted(set(names) ^ set(columns[first]))
        if different:
            raise DataError(
                f"{path} and {first} are read as one table, but only one of them has {listed(different)}; give them "
                "the same columns"
            )


def reason(error: Exception) -> str:
    """Returns a library's error for a message."""
    text = in_one_line(str(error))
    if "allow_pickle" in text or "Python objects" in text or "Object arrays" in text:
        return "it has Python objects, which are never unpickled; save numeric arrays, for example with numpy.asarray"
    return text[:_MAX_REASON] or type(error).__name__


def convert_column(place: str, column: pa.ChunkedArray) -> Column:
    """Returns a column (N,) of numbers, strings, or lists of numbers of one length as an array or strings."""
    if isinstance(column.type, pa.BaseExtensionType):
        stored = convert_column(place, pa.chunked_array([chunk.storage for chunk in column.chunks]))
        if isinstance(column.type, pa.FixedShapeTensorType):
            assert isinstance(stored, np.ndarray), "a tensor is stored as a list of numbers"
            return stored.reshape(len(column), *column.type.shape)
        return stored
    types = pa.types
    dtype = column.type
    if column.null_count:
        rows = np.flatnonzero(column.is_null().to_numpy())
        raise missing_value(place, int(rows[0]))
    if types.is_dictionary(dtype) or types.is_string(dtype) or types.is_large_string(dtype):
        encoded = pc.dictionary_encode(column.cast(pa.string())).combine_chunks()
        values = list(map(str, encoded.dictionary.to_pylist()))
        return string_column(place, values, encoded.indices.to_numpy())
    if _is_list(dtype):
        return _vectors(place, column)
    if types.is_decimal(dtype):
        column = column.cast(pa.float64())
        dtype = pa.float64()
    if not _is_numeric(dtype):
        raise DataError(
            f"{place} has values of type {dtype}; convert them to numbers or strings, or leave the column out by "
            "naming the others in dataset.features"
        )
    if types.is_float64(dtype):
        # Larger values become infinite, which `encode` rejects.
        column = pc.cast(column, pa.float32(), safe=False)
    array: Array = column.to_numpy()
    return array


def _vectors(place: str, column: pa.ChunkedArray) -> Array:
    """Returns lists of numbers, all of the same length, as one array (N, ...) with a dim per level of the lists."""
    shape = [len(column)]
    flat = column
    while _is_list(flat.type):
        lengths = pc.list_value_length(flat).to_numpy()
        different_entries = np.flatnonzero(lengths != lengths[:1])
        if len(different_entries):
            # Entries of an inner list are counted over all rows.
            entries_per_row = max(1, len(flat) // len(column))
            entry = int(different_entries[0])
            raise DataError(
                f"{place}: row {entry // entries_per_row + 1} has {lengths[entry]} numbers, but row 1 has "
                f'{lengths[0]}; pad the lists to one length (see "Text and sequences" in the docs)'
            )
        if flat.null_count:
            break
        # Without entries, the lists that contain these are all empty.
        shape.append(int(lengths.max(initial=0)))
        flat = pc.list_flatten(flat)
    if flat.null_count or not _is_numeric(flat.type):
        raise DataError(f"{place} has lists of {flat.type}, or with missing values; use lists of numbers")
    values: Array = flat.to_numpy().reshape(shape)
    return values


def _is_list(kind: pa.DataType) -> bool:
    types = pa.types
    return bool(types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind))


def _is_numeric(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind))

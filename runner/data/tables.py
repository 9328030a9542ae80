"""Readers for files of arrays and tables: .npz, .npy, .csv and .parquet.

Nothing in a file is ever unpickled.
"""

from __future__ import annotations

import re
import zipfile
import zlib
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet
from numpy.lib.npyio import NpzFile

from runner.data.base import Array
from runner.data.encode import (
    Column,
    as_column,
    by_clean_name,
    cleaned,
    is_number,
    missing_value,
    string_column,
)
from runner.data.ragged import Ragged
from runner.errors import DataError, did_you_mean, in_one_line, invalid, listed

# Bytes of a .csv per parsed block. Each block is reduced before the next one is parsed, so it bounds the memory.
_BLOCK_BYTES = 1 << 20
# PyArrow's own limit for a block is 2 GiB; half of it is far above any row.
_MAX_BLOCK_BYTES = 1 << 30
# Delimiters that a file with a single column was probably written with.
_OTHER_DELIMITERS = ";\t|"
# Characters of a library's error that a message shows.
_MAX_REASON = 300
# pandas stores a frame's index in columns of this name.
_PANDAS_INDEX = re.compile(r"__index_level_\d+__")
_READ_ERRORS = (
    *(OSError, ValueError, EOFError, zipfile.BadZipFile, zlib.error, pa.ArrowException),
    # What NumPy makes of a damaged header: a size that is no number, or more than the memory.
    *(TypeError, OverflowError, MemoryError, RecursionError),
)


def read(paths: Sequence[Path], features: Sequence[str] | None) -> dict[str, pa.ChunkedArray | Array | None]:
    """Reads the files of a split.

    Files with tables, and archives, are concatenated row by row in their order. A .npy file is one array.

    Args:
      paths: .npz, .npy, .csv or .parquet files.
      features: names to read, as in the files or cleaned; None: all.

    Returns:
      Columns or arrays by their names in the files; None for those that are not read.

    Raises:
      DataError: a file can't be read or has Python objects, or files differ in their columns.
    """
    where = place(paths)
    found: dict[str, pa.ChunkedArray | Array | None] = {}
    archives: dict[Path, dict[str, Array | None]] = {}
    tables: dict[Path, pa.Table] = {}
    for path in paths:
        suffix = path.suffix.lower()
        try:
            if suffix == ".npy":
                _check_new(path.stem, found, where)
                found[path.stem] = _array(path, np.load(path, mmap_mode="r", allow_pickle=False))
            elif suffix == ".npz":
                archives[path] = _read_archive(path, features)
            else:
                tables[path] = _read_table(path)
        except _READ_ERRORS as error:
            raise DataError(f"{path} can't be read: {reason(error)}") from error
    check_same_columns({path: list(archive) for path, archive in archives.items()})
    for name in next(iter(archives.values()), ()):
        _check_new(name, found, where)
        pieces = [archive[name] for archive in archives.values()]
        try:
            found[name] = None if pieces[0] is None else _joined(pieces)  # type: ignore[arg-type]
        except ValueError as error:
            raise DataError(f"{where}, {name}: {reason(error)}; all files need one shape") from error
    if tables:
        check_same_columns({path: table.column_names for path, table in tables.items()})
        table = concatenated(list(tables.values()), where)
        tables.clear()
        for name in table.column_names:
            _check_new(name, found, where)
            found[name] = table.column(0) if is_selected(features, name) else None
            # The caller frees each Arrow column before the next one is converted.
            table = table.remove_column(0)
    return found


def place(paths: Sequence[Path]) -> str:
    """Returns the name of a split for messages: its file, or the folder of its files."""
    return str(paths[0] if len(paths) == 1 else paths[0].parent)


def concatenated(tables: Sequence[pa.Table], where: str) -> pa.Table:
    """Returns tables of the same columns as one; nothing is copied where their types are the same.

    Raises:
      DataError: a column has numbers in one file and strings in another.
    """
    first, *others = tables
    try:
        return pa.concat_tables(
            [first, *(table.select(first.column_names) for table in others)], promote_options="permissive"
        )
    except pa.ArrowException as error:
        raise DataError(f"{where}: the files can't be read as one table: {reason(error)}") from error


def select(names: Sequence[str], features: Sequence[str] | None, where: str) -> dict[str, str]:
    """Returns array -> name of its column, in the order of the file.

    Args:
      names: of all columns.
      features: names to read, as in the file or cleaned; None: all but the index of a pandas frame.
      where: the file or folder, for errors.

    Raises:
      ConfigError: there is no such column, or several fit.
      DataError: two columns have the same name, or a name can't be used.
    """
    known = [name for name in names if not is_index(name)]
    chosen = set(known)
    if features is not None:
        chosen = set()
        for feature in features:
            matching = [name for name in known if cleaned(feature) == cleaned(name)]
            if feature in known:
                matching = [feature]
            if len(matching) > 1:
                raise invalid(
                    "dataset.features",
                    feature,
                    problem=f"means several columns ({listed(matching)})",
                    fix="write the name of one of them as it is in the file",
                )
            if not matching:
                raise invalid(
                    "dataset.features",
                    feature,
                    problem=f"unknown column (the columns: {listed(known)})",
                    fix=did_you_mean(feature, map(cleaned, known), f"set dataset.features=[{','.join(known[:2])}]"),
                )
            chosen.add(matching[0])
    return by_clean_name([(name, name) for name in known if name in chosen], where)


def column(where: str, values: pa.ChunkedArray | Array, *, is_sequence: bool) -> Column | Ragged:
    """Returns a column of `read` as an array, strings, or sequences of different lengths.

    Raises:
      DataError: a value is missing, or the type is another one.
    """
    if isinstance(values, np.ndarray):
        if is_sequence:
            raise DataError(
                f"{where} is not a column of lists, which dataset.pad is for; remove it there, or save the lists in a "
                ".parquet file"
            )
        return as_column(where, values)
    if not is_sequence:
        return convert_column(where, values)
    steps, lengths = sequences(where, values)
    return Ragged(np.split(steps, np.cumsum(lengths)[:-1]))


def is_index(name: str) -> bool:
    """Returns whether a column is the index of a pandas frame."""
    return _PANDAS_INDEX.fullmatch(name) is not None


def is_selected(features: Sequence[str] | None, name: str) -> bool:
    """Returns whether `dataset.features` may mean a column."""
    return features is None or name in features or cleaned(name) in map(cleaned, features)


def reason(error: Exception) -> str:
    """Returns a library's error for a message."""
    text = in_one_line(str(error))
    if "allow_pickle" in text or "Python objects" in text or "Object arrays" in text:
        return "it has Python objects, which are never unpickled; save numeric arrays, for example with numpy.asarray"
    return text[:_MAX_REASON] or type(error).__name__


def _check_new(name: str, found: Collection[str], where: str) -> None:
    if name in found:
        raise DataError(f"{where}: two columns are called {name!r}; rename one of them")


def check_same_columns(columns: Mapping[Path, Sequence[str]]) -> None:
    """Checks that files have the same columns.

    Raises:
      DataError: one lacks a column.
    """
    for path, names in columns.items():
        first = next(iter(columns))
        different = sorted(set(names) ^ set(columns[first]))
        if different:
            raise DataError(
                f"{path} and {first} are read as one table, but only one of them has {listed(different)}; give them "
                "the same columns"
            )


def _joined(pieces: Sequence[Array]) -> Array:
    return pieces[0] if len(pieces) == 1 else np.concatenate(pieces)


def _read_archive(path: Path, features: Sequence[str] | None) -> dict[str, Array | None]:
    archive = np.load(path, allow_pickle=False)
    if not isinstance(archive, NpzFile):
        raise DataError(f"{path} is not a .npz archive; save it with numpy.savez, or rename it to .npy")
    arrays: dict[str, Array | None] = {}
    with archive:
        for name in archive.files:
            arrays[name] = _array(f"{path}, {name}", archive[name]) if is_selected(features, name) else None
    return arrays


def _array(where: Path | str, array: object) -> Array:
    # An archive with the suffix .npy, or another kind of file inside an archive, is not an array.
    if not isinstance(array, np.ndarray):
        raise DataError(f"{where} is not an array; save it with numpy.save or numpy.savez")
    if 0 in array.shape[1:]:
        raise DataError(f"{where} has the shape {array.shape}, so its examples have no values; save it again")
    return array


def _read_table(path: Path) -> pa.Table:
    if path.suffix.lower() == ".parquet":
        table = pyarrow.parquet.read_table(path)
    else:
        table = _parse_csv(path)
        _check_header(path, table.column_names)
    if not table.num_rows:
        raise DataError(f"{path} has no examples")
    for name in table.column_names:
        if table.column_names.count(name) > 1:
            raise DataError(f"{path}: two columns are called {name!r}; rename one of them")
    return table


def _check_header(path: Path, header: Sequence[str]) -> None:
    if header and all(map(is_number, header)):
        raise DataError(f"{path} has numbers in its first line; add a line with the names of the columns")
    if len(header) == 1:
        for delimiter in _OTHER_DELIMITERS:
            if delimiter in header[0]:
                raise DataError(f"{path} uses {delimiter!r} as its delimiter; save it as comma-separated")


def _parse_csv(path: Path) -> pa.Table:
    """Parses a .csv block by block and keeps only the reduced blocks in memory.

    The first block determines the types. If a later block needs wider types, or a row is longer than a block, the file
    is parsed again as one block.
    """
    try:
        with pyarrow.csv.open_csv(path, read_options=pyarrow.csv.ReadOptions(block_size=_BLOCK_BYTES)) as reader:
            batches = list(map(_reduced, reader))
        if batches:
            return pa.Table.from_batches(batches)
    except pa.ArrowInvalid:
        pass
    whole_file = path.stat().st_size + 1
    block_size = min(max(whole_file, _BLOCK_BYTES), _MAX_BLOCK_BYTES)
    return pyarrow.csv.read_csv(path, read_options=pyarrow.csv.ReadOptions(block_size=block_size))


def _reduced(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Returns a batch with floats as float32 and strings dictionary-encoded.

    float32 is the dtype of the arrays.
    """
    columns = []
    for column in batch.columns:
        if pa.types.is_float64(column.type):
            columns.append(_as_float32(column))
        elif pa.types.is_string(column.type):
            columns.append(column.dictionary_encode())
        else:
            columns.append(column)
    return pa.RecordBatch.from_arrays(columns, names=batch.schema.names)


def _as_float32(column: pa.Array | pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
    """Returns float64 as float32.

    Larger values become infinite, which `encode` rejects.
    """
    return pc.cast(column, pa.float32(), safe=False)


def convert_column(place: str, column: pa.ChunkedArray) -> Column:
    """Returns a column of a table as an array, or as a column of strings.

    Args:
      place: file and column, for errors.
      column: (N,), of numbers, strings, or lists of numbers of one length.

    Raises:
      DataError: a value is missing, or the type is another one.
    """
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
    if not (types.is_integer(dtype) or types.is_floating(dtype) or types.is_boolean(dtype)):
        raise DataError(
            f"{place} has values of type {dtype}; convert them to numbers or strings, or leave the column out by "
            "naming the others in dataset.features"
        )
    if types.is_float64(dtype):
        column = _as_float32(column)
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
                f"{lengths[0]}; use lists of one length, or name the column in dataset.pad"
            )
        if flat.null_count:
            break
        # Without entries, the lists that contain these are all empty.
        shape.append(int(lengths[0]) if len(lengths) else 0)
        flat = pc.list_flatten(flat)
    is_numeric = pa.types.is_integer(flat.type) or pa.types.is_floating(flat.type) or pa.types.is_boolean(flat.type)
    if flat.null_count or not is_numeric:
        raise DataError(f"{place} has lists of {flat.type}, or with missing values; use lists of numbers")
    values: Array = flat.to_numpy().reshape(shape)
    return values


def sequences(place: str, column: pa.ChunkedArray) -> tuple[Array, Array]:
    """Returns lists of numbers of different lengths, one after the other.

    Args:
      place: file and column, for errors.
      column: (N,), of lists of numbers, or of lists of lists of one length.

    Returns:
      The steps of all lists (S, ...), and the number of steps of each, int64 (N,). If no list has a step, the steps
      are (0,), whatever their shape and dtype elsewhere.

    Raises:
      DataError: a list or a step is missing, or the column has other values.
    """
    if column.null_count:
        rows = np.flatnonzero(column.is_null().to_numpy())
        raise missing_value(place, int(rows[0]))
    if not _is_list(column.type):
        raise DataError(f"{place} has values of type {column.type}, but dataset.pad is for lists; remove it there")
    lengths = pc.list_value_length(column).to_numpy().astype(np.int64)
    flat = pc.list_flatten(column)
    if not len(flat):
        # Nothing shows what a step is: the type may be null, and the length of inner lists is unknown.
        return np.zeros(0, np.float32), lengths
    steps = convert_column(f"{place}, all steps in order", flat)
    if not isinstance(steps, np.ndarray):
        raise DataError(f"{place} has lists of strings, but dataset.pad is for numbers; encode them first")
    return steps, lengths


def _is_list(kind: pa.DataType) -> bool:
    types = pa.types
    return bool(types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind))

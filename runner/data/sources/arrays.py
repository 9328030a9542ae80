"""`arrays`: a user's tables and arrays in memory (.npz, .npy, .csv, .parquet); nothing in a file is ever unpickled."""

from __future__ import annotations

import math
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import chain
from operator import itemgetter
from pathlib import Path

import numpy as np
from numpy.lib.npyio import NpzFile

from runner.config.schema_data import DatasetConfig
from runner.data.base import Array, Encoding, FullDataset, in_memory
from runner.data.checks_source import TABLE_SUFFIXES
from runner.data.digest import of_files
from runner.data.encode import Column, as_column, check_lengths, cleaned, encode
from runner.data.sources import split_files, stored
from runner.data.tables import check_same_columns, reason, select
from runner.errors import DataError

_ARRAYS = (".npz", ".npy")
# Rows of a table that are converted at a time.
_ROWS = 1 << 16
_READ_ERRORS = (
    *(OSError, ValueError, EOFError, zipfile.BadZipFile, zlib.error),
    # What NumPy makes of a damaged header: a size that is no number, or more than the memory.
    *(TypeError, OverflowError, MemoryError, RecursionError),
)


def load(config: DatasetConfig, encoding: Encoding | None = None) -> FullDataset:
    """Loads a file, or a folder of files; see `split_files.find`."""
    assert config.path is not None
    files = split_files.find(config.path, TABLE_SUFFIXES)
    name = Path(config.path).expanduser().absolute().name
    are_arrays = {path.suffix.lower() in _ARRAYS for path in chain.from_iterable(files.values())}
    if len(are_arrays) > 1:
        raise DataError(f"{config.path} has tables and arrays; store all in one form, or name one file")
    if are_arrays == {False}:
        data = stored.load_files(files, config, encoding or Encoding(), name, config.path)
        splits = {split: in_memory(rows, math.inf, _ROWS) for split, rows in data.splits.items()}
        return replace(data, splits=splits)
    where = {}
    columns = {}
    for split, paths in files.items():
        where[split] = str(paths[0])
        if len(paths) > 1:
            where[split] = str(paths[0].parent)
        columns[split] = _read(paths, config.features, where[split])
    sources, used = encode(columns, where, encoding)
    return FullDataset(name, "", sources, of_files(files), config.path, used)


def _read(paths: Sequence[Path], features: Sequence[str] | None, where: str) -> Mapping[str, Column]:
    """Returns the arrays of a split: archives are concatenated row by row, and a .npy file is one array."""
    found: dict[str, Array | None] = {}
    archives: dict[Path, dict[str, Array | None]] = {}
    for path in paths:
        try:
            if path.suffix.lower() == ".npy":
                found[path.stem] = _checked(path, np.load(path, mmap_mode="r", allow_pickle=False))
            else:
                archives[path] = _read_archive(path, features)
        except _READ_ERRORS as error:
            raise DataError(f"{path} can't be read: {reason(error)}") from error
    check_same_columns(archives)
    for name, first in next(iter(archives.values()), {}).items():
        if name in found:
            raise DataError(f"{where}: two columns are called {name!r}; rename one of them")
        found[name] = first
        # What is not read of one archive is read of none.
        if first is not None and len(archives) > 1:
            pieces = list(map(itemgetter(name), archives.values()))
            try:
                found[name] = np.concatenate(pieces)
            except ValueError as error:
                raise DataError(f"{where}, {name}: {reason(error)}; all files need one shape") from error
    if not found:
        raise DataError(f"{where} has no arrays")
    columns = {}
    for array, name in select(list(found), features, where).items():
        values = found[name]
        assert values is not None, "`select` takes no other arrays than are read"
        columns[array] = as_column(f"{where}, {name}", values)
    check_lengths(columns, where)
    return columns


def _read_archive(path: Path, features: Sequence[str] | None) -> dict[str, Array | None]:
    """Returns the arrays of an archive; None for those that `dataset.features` can't mean, which are not read."""
    archive = np.load(path, allow_pickle=False)
    if not isinstance(archive, NpzFile):
        raise DataError(f"{path} is not a .npz archive; save it with numpy.savez, or rename it to .npy")
    if features is None:
        features = archive.files
    named = {*features, *map(cleaned, features)}
    arrays: dict[str, Array | None] = dict.fromkeys(archive.files)
    with archive:
        for name in archive.files:
            if name in named or cleaned(name) in named:
                arrays[name] = _checked(f"{path}, {name}", archive[name])
    return arrays


def _checked(where: Path | str, array: object) -> Array:
    # An archive with the suffix .npy, or another kind of file inside an archive, is not an array.
    if not isinstance(array, np.ndarray):
        raise DataError(f"{where} is not an array; save it with numpy.save or numpy.savez")
    if 0 in array.shape[1:]:
        raise DataError(f"{where} has the shape {array.shape}, so its examples have no values; save it again")
    return array

"""`arrays`: a user's tables and arrays (.npz, .npy, .csv, .parquet)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from runner.config.schema_data import DatasetConfig
from runner.data import ragged, tables
from runner.data.base import Encoding, FullDataset
from runner.data.checks_source import TABLE_SUFFIXES
from runner.data.digest import of_files
from runner.data.encode import Column, check_lengths, encode
from runner.data.ragged import Ragged
from runner.data.sources import split_files
from runner.errors import DataError


def load(config: DatasetConfig, encoding: Encoding | None = None) -> FullDataset:
    """Loads a file, or a folder of files; see `split_files.find` and `tables.read`.

    Args:
      config: its `path` is the file or folder, and its `features` select columns.
      encoding: of the run that the data is read for; None: strings get their numbers here.

    Raises:
      ConfigError: there is no such column.
      DataError: a file can't be read, or has values that no array can represent.
    """
    assert config.path is not None
    files = split_files.find(config.path, TABLE_SUFFIXES)
    where = {split: tables.place(paths) for split, paths in files.items()}
    columns = {split: _read(paths, config, where[split]) for split, paths in files.items()}
    recorded = encoding.lengths if encoding else {}
    arrays, lengths = ragged.padded(columns, config.pad or {}, config.pad_length, recorded, pack=config.pack)
    sources, used = encode(arrays, where, encoding)
    return FullDataset(
        name=Path(config.path).expanduser().absolute().name,
        version="",
        splits=sources,
        digest=of_files(files),
        source=config.path,
        encoding=replace(used, lengths=lengths),
    )


def _read(paths: Sequence[Path], config: DatasetConfig, where: str) -> Mapping[str, Column | Ragged]:
    """Returns the columns of one split."""
    found = tables.read(paths, config.features)
    if not found:
        raise DataError(f"{where} has no arrays")
    names = tables.select(list(found), config.features, where)
    pad = config.pad or {}
    ragged.check_names(pad, names)
    columns = {}
    for array, name in names.items():
        # Removed, so that the table and one converted column are in memory at a time.
        values = found.pop(name)
        assert values is not None, "`select` takes no other columns than `read` does"
        columns[array] = tables.column(f"{where}, {name}", values, is_sequence=array in pad)
        del values
    check_lengths(columns, where)
    return columns

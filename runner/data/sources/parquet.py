"""`parquet`: tables that need not fit into memory. Each file is converted once into an Arrow file, which is mapped."""

from __future__ import annotations

from runner.config.schema_data import DatasetConfig
from runner.data import places
from runner.data.base import Encoding, FullDataset
from runner.data.checks_source import PARQUET_SUFFIXES
from runner.data.sources import split_files, stored_tables
from runner.data.sources.arrow_table import from_parquet


def load(config: DatasetConfig, encoding: Encoding | None = None) -> FullDataset:
    """Scans the files, if they changed, and returns their sources.

    Args:
      config: its `path` is a file, a folder or a glob, and its `features` select columns.
      encoding: of the run that the data is read for; None: strings get their numbers here.

    Raises:
      ConfigError: there is no such column; images have several sizes.
      DataError: a file can't be read, or has values that no array can represent.
    """
    assert config.path is not None
    files = split_files.find(config.path, PARQUET_SUFFIXES)
    tables = {split: list(map(from_parquet, paths)) for split, paths in files.items()}
    return stored_tables.load(tables, config, encoding)


def location(config: DatasetConfig) -> str:
    """Returns the file or folder."""
    assert config.path is not None
    return places.location(config.path)

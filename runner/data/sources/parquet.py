"""`parquet`: tables that need not fit into memory, read by row groups."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from runner.config.schema_data import DatasetConfig
from runner.data import places
from runner.data.base import Encoding, FullDataset
from runner.data.checks_source import PARQUET_SUFFIXES
from runner.data.sources import split_files, table_blocks
from runner.errors import DataError

# Characters of a library's error that a message shows.
_MAX_REASON = 300


@dataclass(frozen=True)
class ParquetTable:
    """A Parquet file, whose row groups are its blocks.

    Attributes:
      path: the file.
      block_name: what a block is called in messages.
    """

    path: Path
    block_name: str = "row group"

    @property
    def names(self) -> list[str]:
        """Names of the columns."""
        return list(self.schema.names)

    @property
    def schema(self) -> pa.Schema:
        """Types of the columns, with the metadata of the file."""
        return self._metadata.schema.to_arrow_schema().with_metadata(self._metadata.metadata)

    @cached_property
    def lengths(self) -> list[int]:
        """Rows of each row group."""
        metadata = self._metadata
        return [metadata.row_group(number).num_rows for number in range(metadata.num_row_groups)]

    @cached_property
    def _metadata(self) -> pq.FileMetaData:
        try:
            return pq.read_metadata(self.path)
        except (OSError, pa.ArrowException) as error:
            raise _unreadable(self.path, error) from error

    def read(self, number: int, columns: Sequence[str]) -> pa.Table:
        """Returns some columns of a row group.

        Raises:
          DataError: the file can't be read.
        """
        try:
            # The metadata of a file with many row groups takes longer to parse than a row group to read.
            with pq.ParquetFile(self.path, metadata=self._metadata) as file:
                # In one thread, which is as fast (0.9 s for 64 row groups of 8 MiB; 1.2 s with two) in less memory.
                return file.read_row_group(number, columns=list(columns), use_threads=False)
        except (OSError, ValueError, pa.ArrowException) as error:
            raise _unreadable(self.path, error) from error


def load(config: DatasetConfig, encoding: Encoding | None = None) -> FullDataset:
    """Scans the files, if they changed, and returns their sources.

    Args:
      config: its `path` is a file, a folder or a glob, and its `features` select columns.
      encoding: of the run that the data is read for; None: strings get their numbers here.

    Raises:
      ConfigError: there is no such column; images have several sizes; the shuffle window does not fit in the cache.
      DataError: a file can't be read, or has values that no array can represent.
    """
    assert config.path is not None
    files = {}
    for split, paths in split_files.find(config.path, PARQUET_SUFFIXES).items():
        files[split] = [ParquetTable(path) for path in paths]
    return table_blocks.load(files, config, encoding)


def location(config: DatasetConfig) -> str:
    """Returns the file or folder."""
    assert config.path is not None
    return places.location(config.path)


def _unreadable(path: Path, error: Exception) -> DataError:
    return DataError(f"{path} can't be read: {' '.join(str(error).split())[:_MAX_REASON]}")

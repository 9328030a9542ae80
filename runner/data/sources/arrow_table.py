"""Tables in Arrow files, which are memory-mapped; a Parquet file becomes one, once."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.ipc
import pyarrow.parquet as pq

from runner.data.base import Rows
from runner.data.progress import report_progress
from runner.data.sources.prepared import META, load_or_write
from runner.errors import DataError
from runner.host.folders import cache_folder

# First bytes of Arrow's file format. Its stream format, which the library `datasets` writes, has none.
_FILE_FORMAT = b"ARROW1"
# The Arrow file of a Parquet file, in its folder of the cache.
_CONVERTED = "table.arrow"
# Characters of a library's error that a message shows.
_MAX_REASON = 300


@dataclass(frozen=True)
class ArrowTable:
    """A table in an Arrow file, memory-mapped.

    Attributes:
      path: the file, or the Parquet file that it was made of.
      arrow: the Arrow file.
      block_name: what a block is called in messages.
    """

    path: Path
    arrow: Path
    block_name: str = "record batch"

    def __reduce__(self) -> tuple[type[ArrowTable], tuple[Path, Path, str]]:
        """Returns the table without its map, for another process."""
        return ArrowTable, (self.path, self.arrow, self.block_name)

    @property
    def names(self) -> list[str]:
        """Names of the columns."""
        return list(self.schema.names)

    @property
    def schema(self) -> pa.Schema:
        """Types of the columns, with the metadata of the file."""
        return self._content[0]

    @cached_property
    def lengths(self) -> list[int]:
        """Rows of each record batch."""
        return [batch.num_rows for batch in self._content[1]]

    @cached_property
    def _content(self) -> tuple[pa.Schema, list[pa.RecordBatch]]:
        try:
            with self.arrow.open("rb") as file:
                is_file_format = file.read(len(_FILE_FORMAT)) == _FILE_FORMAT
            mapped = pa.memory_map(str(self.arrow))
            if is_file_format:
                reader = pa.ipc.open_file(mapped)
                return reader.schema, [reader.get_batch(number) for number in range(reader.num_record_batches)]
            stream = pa.ipc.open_stream(mapped)
            return stream.schema, list(stream)
        except (OSError, ValueError, pa.ArrowException) as error:
            raise _unreadable(self.path, error) from error

    def read(self, number: int, columns: Sequence[str]) -> pa.Table:
        """Returns some columns of a record batch."""
        return pa.Table.from_batches([self._content[1][number].select(list(columns))])

    def take(self, rows: Rows, columns: Sequence[str]) -> pa.Table:
        """Returns some columns of some rows, sorted and each once."""
        taken = {}
        for name in columns:
            column = self._table.column(name)
            if len(rows) == 1:
                # A slice copies nothing, and takes a fraction of the time of `take`.
                taken[name] = column.slice(int(rows[0]), 1)
            elif pa.types.is_primitive(column.type):
                taken[name] = column.take(pa.array(rows))
            else:
                # Of columns of other types, `take` would first copy all record batches into one array.
                taken[name] = self._take_by_batch(name, rows)
        return pa.table(taken)

    def _take_by_batch(self, name: str, rows: Rows) -> pa.ChunkedArray:
        bounds = np.searchsorted(rows, self._starts)
        pieces = []
        # The record batches that have any of the rows.
        for number in np.flatnonzero(np.diff(bounds)).tolist():
            own = rows[bounds[number] : bounds[number + 1]] - self._starts[number]
            pieces.append(self._content[1][number].column(name).take(pa.array(own)))
        return pa.chunked_array(pieces)

    @cached_property
    def _table(self) -> pa.Table:
        schema, batches = self._content
        return pa.Table.from_batches(batches, schema)

    @cached_property
    def _starts(self) -> Rows:
        """First row of each record batch, and the number of rows."""
        return np.cumsum([0, *self.lengths])


def from_parquet(path: Path) -> ArrowTable:
    """Returns the table of a Parquet file, which is converted row group by row group unless it was before.

    Its rows can't be read alone, but those of an Arrow file can.

    Raises:
      DataError: the file can't be read, or its Arrow file not be written.
    """

    def read(folder: Path) -> ArrowTable | None:
        is_complete = (folder / META).exists() and (folder / _CONVERTED).exists()
        return ArrowTable(path, folder / _CONVERTED, "row group") if is_complete else None

    def write(folder: Path) -> None:
        with pq.ParquetFile(path) as file, pa.ipc.new_stream(folder / _CONVERTED, file.schema_arrow) as writer:
            for number in range(file.num_row_groups):
                # In one thread, which is as fast (0.9 s for 64 row groups of 8 MiB; 1.2 s with two) in less memory.
                writer.write_table(file.read_row_group(number, use_threads=False))
        (folder / META).write_text("{}")

    try:
        stat = path.stat()
        key = f"{path.resolve()}\0{stat.st_size}\0{stat.st_ctime_ns}\0{pa.__version__}"
        folder = cache_folder("arrow") / hashlib.sha256(key.encode()).hexdigest()[:32]
        folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        return load_or_write(folder, ("arrow",), read, write, report_progress, f"the Arrow file of {path}")
    except (OSError, ValueError, pa.ArrowException) as error:
        raise _unreadable(path, error) from error


def _unreadable(path: Path, error: Exception) -> DataError:
    return DataError(f"{path} can't be read: {' '.join(str(error).split())[:_MAX_REASON]}")

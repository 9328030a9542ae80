"""Files of each split as one table: Arrow files are memory-mapped, others are read into memory.

PyArrow reads the files. The library `datasets` is not needed, and no code of a dataset is executed.

    pictures/dataset_dict.json, pictures/train/state.json, ...     saved by `DatasetDict.save_to_disk`
    pictures/state.json, pictures/data-00000-of-00001.arrow        saved by `Dataset.save_to_disk`
    pictures/data/train-00000-of-00002.parquet, ...                a repository of the Hub
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.ipc
import pyarrow.parquet as pq

from runner.data.base import Rows
from runner.data.checks_source import ARROW_SUFFIXES, PARQUET_SUFFIXES
from runner.data.sources import split_files
from runner.data.tables import concatenated, read_csv, reason
from runner.errors import DataError, invalid

# First bytes of Arrow's file format. Its stream format, which the library `datasets` writes, has none.
_FILE_FORMAT = b"ARROW1"
# Written by `save_to_disk`: the splits of a dataset, and the files of a split.
_SPLITS = "dataset_dict.json"
_STATE = "state.json"
# Written into the library's cache, whose files it names otherwise.
_INFO = "dataset_info.json"
# Metadata of a schema with the features of its columns.
_FEATURES = b"huggingface"


def open_table(path: Path) -> pa.Table:
    """Maps an Arrow file, or reads one of another type into memory."""
    try:
        if path.suffix.lower() == ".csv":
            return read_csv(path)
        if path.suffix.lower() in PARQUET_SUFFIXES:
            with pq.ParquetFile(path) as parquet:
                return parquet.read()
        with path.open("rb") as file:
            is_file_format = file.read(len(_FILE_FORMAT)) == _FILE_FORMAT
        mapped = pa.memory_map(str(path))
        if is_file_format:
            return pa.ipc.open_file(mapped).read_all()
        return pa.ipc.open_stream(mapped).read_all()
    except (OSError, ValueError, pa.ArrowException) as error:
        raise DataError(f"{path} can't be read: {reason(error)}") from error


@dataclass(frozen=True, eq=False)
class SplitTable:
    """The files of a split, which together have rows, as one table of the columns that all `tables` have."""

    files: Sequence[Path]
    tables: Sequence[pa.Table]

    @cached_property
    def columns(self) -> Mapping[str, pa.ChunkedArray]:
        """All columns, by name."""
        # The columns of a file without rows may have any type.
        with_rows = [table for table in self.tables if table.num_rows]
        table = concatenated(with_rows, str(self.files[0].parent))
        return dict(zip(table.column_names, table.columns, strict=True))

    @cached_property
    def _starts(self) -> Rows:
        """First row of each file, and the number of rows."""
        return np.cumsum([0, *map(len, self.tables)])

    @property
    def size(self) -> int:
        """Number of rows."""
        return int(self._starts[-1])

    def place(self, row: int) -> str:
        """Returns the name of a row for messages."""
        number = int(np.searchsorted(self._starts, row, side="right")) - 1
        return f"{self.files[number]}, row {row - self._starts[number] + 1}"

    @cached_property
    def _chunks(self) -> Mapping[str, tuple[list[pa.Array], Rows]]:
        """The chunks of each column, and the first row of each."""
        chunks = {}
        for name, column in self.columns.items():
            chunks[name] = (column.chunks, np.cumsum([0, *map(len, column.chunks)]))
        return chunks

    def take(self, name: str, rows: Rows) -> pa.ChunkedArray:
        """Returns some rows of a column, sorted and each once."""
        column = self.columns[name]
        if len(rows) == 1:
            # A slice copies nothing, and takes a fraction of the time of `take`.
            return column.slice(int(rows[0]), 1)
        if pa.types.is_primitive(column.type):
            return column.take(pa.array(rows))
        # Of columns of other types, `take` would first copy all chunks into one array.
        chunks, starts = self._chunks[name]
        bounds = np.searchsorted(rows, starts)
        pieces = []
        for number in np.flatnonzero(np.diff(bounds)).tolist():
            own = rows[bounds[number] : bounds[number + 1]] - starts[number]
            pieces.append(chunks[number].take(pa.array(own)))
        return pa.chunked_array(pieces)


def find(path: str) -> Mapping[str, Sequence[Path]]:
    """Returns the files of each split: Arrow files if there are any, else Parquet files."""
    return _arrow_files(Path(path).expanduser()) or split_files.find(path, PARQUET_SUFFIXES)


def check_one_configuration(path: str, files: Mapping[str, Sequence[Path]]) -> None:
    """Checks that each split is in one folder: in a repository of the Hub, each configuration has its own folder."""
    for split_paths in files.values():
        folders = sorted({str(file.parent) for file in split_paths})
        if len(folders) > 1:
            problem = f"has the same split in several folders ({', '.join(folders[:3])})"
            raise invalid("dataset.path", path, problem=problem, fix=f"set dataset.path={folders[0]}")


def classes_of(schema: pa.Schema) -> dict[str, tuple[str, ...]]:
    """Returns the names of the classes of each column with class labels."""
    metadata = schema.metadata or {}
    try:
        features = json.loads(metadata.get(_FEATURES, b"{}"))["info"]["features"]
        classes = {}
        for name, feature in features.items():
            if isinstance(feature, Mapping) and feature.get("_type") == "ClassLabel" and feature.get("names"):
                classes[str(name)] = tuple(map(str, feature["names"]))
        return classes
    except (ValueError, KeyError, TypeError, AttributeError):
        # A file of another program: its labels are numbers without names.
        return {}


def _arrow_files(path: Path) -> Mapping[str, Sequence[Path]]:
    if path.is_file():
        is_arrow = path.suffix.lower() in ARROW_SUFFIXES
        return {"train": [path]} if is_arrow else {}
    if (path / _SPLITS).is_file():
        saved = {}
        for name in map(str, _read_json(path / _SPLITS).get("splits", [])):
            saved[name] = _saved_files(path / name)
        return split_files.canonical_splits(saved, path)
    if (path / _STATE).is_file():
        return {"train": _saved_files(path)}
    if all(split_files.is_cache(file) for file in path.rglob("*.arrow")):
        return {}
    if (path / _INFO).is_file():
        raise DataError(f"{path} is a cache of the library datasets; save the dataset with save_to_disk")
    return split_files.find(str(path), ARROW_SUFFIXES)


def _saved_files(folder: Path) -> list[Path]:
    entries = _read_json(folder / _STATE).get("_data_files", [])
    # Only the file's name, so that a manipulated record can't name a file outside the folder.
    files = [folder / Path(str(entry["filename"])).name for entry in entries if "filename" in entry]
    if not files:
        raise DataError(f"{folder / _STATE} lists no files; save the dataset again with save_to_disk")
    return files


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise DataError(f"{path} can't be read: {reason(error)}") from error
    if not isinstance(content, dict):
        raise DataError(f"{path} has no JSON object; save the dataset again with save_to_disk")
    return content

"""Tables on disk that are read row by row: their scan, which is recorded, and their sources.

The first start reads every file once, block by block: for its digest, for the strings of its categories, for the sizes
of its images, and to find values that are missing. The result is recorded in ~/.cache/runner/tables, so later starts
read only files that changed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Protocol

import numpy as np
import pyarrow as pa

from runner.config.schema_data import DatasetConfig
from runner.data import places, ragged
from runner.data.base import DataSource, Encoding, FullDataset, Rows
from runner.data.encode import by_clean_name, cleaned, join_names
from runner.data.packing import POSITIONS, SEGMENTS
from runner.data.sources.columns import Columns, ScannedColumn, ScannedTable, combine
from runner.data.sources.file_records import latest_recordable_ns, read_records, write_records
from runner.data.table_rows import Block, ImageRowSource, RowSource, join_blocks
from runner.data.tables import is_index
from runner.errors import DataError, did_you_mean, invalid
from runner.host.folders import cache_folder

# Version of the records. Increase it with `ScannedTable`, and with what the scan checks.
_FORMAT = 2


class TableFile(Protocol):
    """A file with one table, in blocks of rows; a row can be read without decoding its block."""

    @property
    def path(self) -> Path:
        """The file."""
        ...

    @property
    def names(self) -> list[str]:
        """Names of its columns."""
        ...

    @property
    def lengths(self) -> list[int]:
        """Rows of each block."""
        ...

    @property
    def block_name(self) -> str:
        """What a block is called in messages, such as `row group`."""
        ...

    def read(self, number: int, columns: Sequence[str]) -> pa.Table:
        """Returns some columns of a block.

        Raises:
          DataError: the file can't be read.
        """
        ...

    def take(self, rows: Rows, columns: Sequence[str]) -> pa.Table:
        """Returns some columns of some rows.

        Args:
          rows: int64 (n,), rows of the file, sorted and each once.
          columns: names.

        Raises:
          DataError: the file can't be read.
        """
        ...


Files = Mapping[str, Sequence[TableFile]]
# Column -> names of its classes, in the order of their numbers.
Classes = Mapping[str, tuple[str, ...]]


@dataclass(frozen=True)
class _Scanned:
    """The scan of a file.

    Attributes:
      bytes: size of the file.
      changed: its time of change, in ns.
      sha256: of its content, as hex.
      table: what was found.
    """

    bytes: int
    changed: int
    sha256: str
    table: ScannedTable


@dataclass(frozen=True, eq=False)
class _SplitRows:
    """The rows of a split's files, numbered one after the other.

    Attributes:
      files: each with rows.
      columns: of all files.
    """

    files: Sequence[TableFile]
    columns: Columns

    @cached_property
    def starts(self) -> Rows:
        """First row of each file, and the number of rows."""
        return np.cumsum([0, *(sum(file.lengths) for file in self.files)])

    def read(self, rows: Rows, name: str | None) -> Block:
        """Returns some rows, sorted and each once, or one column of them."""
        names = self.columns.raw_names_of(name)
        bounds = np.searchsorted(rows, self.starts)
        pieces = []
        for number, file in enumerate(self.files):
            own = rows[bounds[number] : bounds[number + 1]] - self.starts[number]
            if len(own):
                piece = _renamed(file.take(own, list(names.values())), names)
                # Each by itself, because files may have different types of numbers.
                pieces.append(self.columns.decode(piece, f"{file.path}, row {own[0] + 1}"))
        return join_blocks(pieces)

    def place(self, row: int) -> str:
        """Returns the name of a row for messages."""
        number = int(np.searchsorted(self.starts, row, side="right")) - 1
        return f"{self.files[number].path}, row {row - self.starts[number] + 1}"


def load(
    files: Files,
    config: DatasetConfig,
    encoding: Encoding | None,
    classes: Mapping[Path, Classes] | None = None,
) -> FullDataset:
    """Scans files that changed, and returns the sources of all splits.

    Args:
      files: of each split; at least one.
      config: columns and image size.
      encoding: of the run that the data is read for; None: strings get their numbers here.
      classes: file or folder -> the classes that its metadata names.

    Raises:
      ConfigError: there is no such column; images have several sizes.
      DataError: a file can't be read, has a value that is missing, or differs from the others or from the run in its
        classes.
    """
    assert config.path is not None
    path = places.local(config.path)
    raw_names = _select(files, config)
    _check_names(config, raw_names, path)
    scans = _scan_all(files, path, raw_names, config.pad or ())
    encoding = encoding or Encoding()
    clean_classes = _common_classes(classes or {}, raw_names, encoding)
    tables = {file: scan.table for file, scan in scans.items()}
    columns = combine(tables, config, encoding.categories, raw_names, clean_classes, encoding.lengths)
    lengths = {name: columns.specs[name].shape[0] for name in columns.padding}
    splits = {split: _source(split_files, columns) for split, split_files in files.items()}
    return FullDataset(
        name=path.absolute().name,
        version="",
        splits=splits,
        digest=_digest(files, scans),
        source=places.shown(config.path),
        encoding=replace(encoding, categories={**columns.categories, **clean_classes}, lengths=lengths),
    )


def _source(files: Sequence[TableFile], columns: Columns) -> DataSource:
    with_rows = [file for file in files if any(file.lengths)]
    if not with_rows:
        raise DataError(f"{files[0].path} has no examples")
    rows = _SplitRows(with_rows, columns)
    size = int(rows.starts[-1])
    if columns.decoders:
        return ImageRowSource(columns.specs, size, rows.read, rows.place, columns.decoders)
    return RowSource(columns.specs, size, rows.read, rows.place)


def _all(files: Files) -> list[TableFile]:
    return list(chain.from_iterable(files.values()))


def _select(files: Files, config: DatasetConfig) -> dict[str, str]:
    """Returns array -> name of its column, the same in every file."""
    all_files = _all(files)
    first = all_files[0]
    for file in all_files[1:]:
        different = sorted(set(file.names) ^ set(first.names))
        if different and config.features is None:
            raise DataError(
                f"{file.path} and {first.path} are read as one table, but only one of them has "
                f"{join_names(different)}; give them the same columns, or name those to read in dataset.features"
            )
    known = [name for name in first.names if not is_index(name)]
    names = known
    if config.features is not None:
        names = []
        for feature in config.features:
            matching = [name for name in known if cleaned(feature) == cleaned(name)]
            if feature in known:
                matching = [feature]
            if len(matching) > 1:
                raise invalid(
                    "dataset.features",
                    feature,
                    problem=f"means several columns ({join_names(matching)})",
                    fix="write the name of one of them as it is in the file",
                )
            if not matching or any(matching[0] not in file.names for file in all_files):
                raise invalid(
                    "dataset.features",
                    feature,
                    problem=f"unknown column (the columns: {join_names(known)})",
                    fix=did_you_mean(feature, known, f"set dataset.features=[{','.join(known[:2])}]"),
                )
            names.append(matching[0])
    return by_clean_name([(name, name) for name in names], str(first.path))


def _common_classes(
    classes: Mapping[Path, Classes], raw_names: Mapping[str, str], encoding: Encoding
) -> dict[str, tuple[str, ...]]:
    """Returns the classes of each array that has numbers of classes.

    A file without names fits any others.

    Raises:
      DataError: two files, or a file and the run, give the numbers of an array other names.
    """
    common: dict[str, tuple[str, ...]] = {}
    for array, column in raw_names.items():
        recorded = encoding.categories.get(array)
        first = None
        for place, names_of in classes.items():
            names = names_of.get(column)
            if names is None:
                continue
            if recorded is not None and names != recorded:
                raise DataError(
                    f"{place}, {column}: its numbers mean the classes {join_names(names)}, but those of the run mean "
                    f"{join_names(recorded)}; store the numbers in the run's order of classes"
                )
            if first is not None and names != common[array]:
                raise DataError(
                    f"{place}, {column}: its numbers mean the classes {join_names(names)}, but those of {first} mean "
                    f"{join_names(common[array])}; store all files with the same classes in the same order"
                )
            if first is None:
                first = place
                common[array] = names
    return common


def _renamed(table: pa.Table, raw_names: Mapping[str, str]) -> pa.Table:
    """Returns the columns of a table by the names of their arrays."""
    return table.select(list(raw_names.values())).rename_columns(list(raw_names))


def _place(file: TableFile, number: int) -> str:
    return f"{file.path}, {file.block_name} {number + 1}"


def _check_names(config: DatasetConfig, raw_names: Mapping[str, str], path: Path) -> None:
    """Checks that the table has the columns of `dataset.pad`, and none that `dataset.pack` adds."""
    ragged.check_names(config.pad or {}, raw_names)
    for name in (SEGMENTS, POSITIONS):
        if config.pack and name in raw_names:
            raise DataError(
                f"{path} has a column called {name}, which dataset.pack adds; leave it out of the features"
            )


def _scan_all(files: Files, path: Path, raw_names: Mapping[str, str], pad: Collection[str]) -> dict[str, _Scanned]:
    """Returns the scan of each file, by its path."""
    key = f"{path.resolve()}\0{pa.__version__}\0" + "\0".join(raw_names.values())
    if pad:
        # Only then a scan knows the lengths of sequences.
        key += "\0\0" + "\0".join(sorted(pad))
    records_path = cache_folder("tables") / f"{hashlib.sha256(key.encode()).hexdigest()[:32]}.json"
    recorded = _read_records(records_path)
    scans = {}
    for file in _all(files):
        name = str(file.path)
        scans[name] = _scan(file, recorded.get(name), raw_names, pad)
    if scans != recorded:
        latest = latest_recordable_ns()
        write_records(
            records_path,
            _FORMAT,
            {name: asdict(scan) for name, scan in scans.items() if scan.changed < latest},
        )
    return scans


def _scan(file: TableFile, recorded: _Scanned | None, raw_names: Mapping[str, str], pad: Collection[str]) -> _Scanned:
    try:
        stat = file.path.stat()
        if recorded is not None and (recorded.bytes, recorded.changed) == (stat.st_size, stat.st_ctime_ns):
            return recorded
        with file.path.open("rb") as opened:
            sha256 = hashlib.file_digest(opened, "sha256").hexdigest()
    except OSError as error:
        raise DataError(f"{file.path} can't be read: {error.strerror or error}") from error
    table = ScannedTable()
    for number, length in enumerate(file.lengths):
        if length:
            block = _renamed(file.read(number, list(raw_names.values())), raw_names)
            table.add(block, _place(file, number), pad)
    return _Scanned(stat.st_size, stat.st_ctime_ns, sha256, table)


def _read_records(path: Path) -> dict[str, _Scanned]:
    records = {}
    try:
        for name, fields in read_records(path, _FORMAT).items():
            assert isinstance(fields, dict)
            table = dict(fields["table"])
            table["columns"] = {column: ScannedColumn(**found) for column, found in table["columns"].items()}
            records[name] = _Scanned(**{**fields, "table": ScannedTable(**table)})
    except (TypeError, KeyError, AttributeError):
        return {}
    return records


def _digest(files: Files, scans: Mapping[str, _Scanned]) -> str:
    """Hashes the files' bytes by split, as `dataset=arrays` does."""
    total = hashlib.sha256()
    for split, split_files in sorted(files.items()):
        for file in split_files:
            name = file.path.suffix
            if len(split_files) > 1:
                # The name decides the order of the rows.
                name = file.path.name
            total.update(f"{split} {name} {scans[str(file.path)].sha256}\n".encode())
    return total.hexdigest()

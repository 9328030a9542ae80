"""Digests of text files, recorded by their size and time of change.

So a second run does not read a large corpus.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from runner.data.sources.file_records import latest_recordable_ns, read_records, write_records
from runner.data.sources.text.files import InlineText, TextInput
from runner.errors import DataError
from runner.host import cores

# Version of the records.
_FORMAT = 1
# File types whose documents depend on `dataset.column`.
_SUFFIXES_WITH_COLUMNS = (".jsonl", ".parquet")

# Size in bytes, and time of change in ns.
Stat = tuple[int, int]


def digest(splits: Mapping[str, Sequence[TextInput]], column: str, records_folder: Path) -> str:
    """Returns the sha256 (hex) of all inputs, by split and in order.

    The names of files do not matter.

    Args:
      splits: inputs of each split.
      column: of the files with columns.
      records_folder: for the recorded digests; optional in that it need not be writable.

    Raises:
      DataError: a file can't be read.
    """
    file_digests = _file_digests(_paths(splits), records_folder)
    total = hashlib.sha256()
    for split, inputs in sorted(splits.items()):
        for text_input in inputs:
            if isinstance(text_input, InlineText):
                suffix = ".txt"
                sha256 = hashlib.sha256(text_input.content.encode()).hexdigest()
            else:
                suffix = text_input.suffix.lower()
                sha256 = file_digests[str(text_input.absolute())]
            column_part = ""
            if suffix in _SUFFIXES_WITH_COLUMNS:
                column_part = f" {column}"
            total.update(f"{split}{column_part} {sha256}\n".encode())
    return total.hexdigest()


def stats(splits: Mapping[str, Sequence[TextInput]]) -> list[Stat]:
    """Returns each file's size and time of change, which show whether it changed."""
    return list(map(_stat, _paths(splits)))


def _paths(splits: Mapping[str, Sequence[TextInput]]) -> list[Path]:
    paths: list[Path] = []
    for inputs in splits.values():
        paths.extend(text_input for text_input in inputs if isinstance(text_input, Path))
    return paths


def _stat(path: Path) -> Stat:
    try:
        stat = path.stat()
    except OSError as error:
        raise DataError(f"{path} can't be read: {error.strerror}") from error
    return stat.st_size, stat.st_ctime_ns


def _file_digests(files: Sequence[Path], records_folder: Path) -> dict[str, str]:
    """Returns the digest of each file by its absolute path.

    Only new and changed files are read.
    """
    names = [str(file.absolute()) for file in files]
    key = hashlib.sha256(json.dumps(names).encode()).hexdigest()[:32]
    records_path = records_folder / f"{key}.json"
    recorded = _read_records(records_path)

    def stat_and_digest(name: str) -> tuple[Stat, str]:
        stat = _stat(Path(name))
        record = recorded.get(name)
        if record is not None and record[0] == stat:
            return record
        try:
            with Path(name).open("rb") as opened:
                return stat, hashlib.file_digest(opened, "sha256").hexdigest()
        except OSError as error:
            raise DataError(f"{name} can't be read: {error.strerror}") from error

    with ThreadPoolExecutor(cores.available()) as pool:
        results = dict(zip(names, pool.map(stat_and_digest, names), strict=True))
    if results != recorded:
        _write_records(records_path, results)
    return {name: sha256 for name, (_, sha256) in results.items()}


def _read_records(path: Path) -> dict[str, tuple[Stat, str]]:
    records = {}
    for name, fields in read_records(path, _FORMAT).items():
        match fields:
            case [int(size), int(changed), str(sha256)]:
                records[name] = ((size, changed), sha256)
    return records


def _write_records(path: Path, results: Mapping[str, tuple[Stat, str]]) -> None:
    latest = latest_recordable_ns()
    records = {}
    for name, ((size, changed), sha256) in results.items():
        if changed < latest:
            records[name] = [size, changed, sha256]
    write_records(path, _FORMAT, records)

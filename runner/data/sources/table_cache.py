"""Cache of parsed tables: arrays on disk, memory-mapped by every process.

    <folder>/<key>/meta.json, 0.npy, 1.npy, ...

The key is a digest of the files' content, the selected columns and the parser's version. The folder is the user's own:
a folder that another user owns or can write to is not used. If all tables together exceed `MAX_BYTES`, the least
recently used are deleted. Without a writable folder, tables are parsed at each start.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from runner.data.base import ArraySource, ArraySpec
from runner.data.progress import report_progress
from runner.data.sources import prepared
from runner.data.sources.prepared import META, load_or_write
from runner.errors import DataError
from runner.host.folders import cache_folder, is_ours

# Version of the layout. Increase it with any change to what `_write` writes.
FORMAT = 1
# Smaller files are parsed faster than a cached table is found.
MIN_BYTES = 1 << 20
# Limit for all tables together: room for several large tables, without filling a home folder unnoticed.
MAX_BYTES = 16 << 30
_SUFFIXES = ("npy",)


@dataclass(frozen=True)
class ParsedTables:
    """Tables as arrays.

    Attributes:
      splits: name -> its arrays.
      categories: integer array -> the strings that it counts.
    """

    splits: Mapping[str, ArraySource]
    categories: Mapping[str, tuple[str, ...]]


def folder() -> Path:
    """Returns the folder of the cache."""
    return cache_folder("tables")


def stats(files: Sequence[Path]) -> list[tuple[int, int, int]]:
    """Returns each file's inode, size and time of change.

    One of them changes with the content.

    Raises:
      OSError: a file is missing or unreadable.
    """
    result = []
    for file in files:
        stat = file.stat()
        result.append((stat.st_ino, stat.st_size, stat.st_ctime_ns))
    return result


def load_or_parse(
    cache: Path, key: object, parse: Callable[[], ParsedTables], is_unchanged: Callable[[], bool]
) -> ParsedTables:
    """Returns cached tables, memory-mapped.

    Parses and caches them first if necessary.

    Args:
      cache: see `folder`.
      key: plain values that determine the tables.
      parse: parses the files.
      is_unchanged: whether the files are still those of the key; otherwise the tables are not cached.

    Raises:
      DataError: the files can't be parsed, or the folder has files that no run wrote.
    """
    content = json.dumps([FORMAT, pa.__version__, key], sort_keys=True)
    name = hashlib.sha256(content.encode()).hexdigest()[:32]
    # The tables that this process parsed, if it did: `write` can't return them through `load_or_write`.
    parsed: list[ParsedTables] = []

    def write(partial: Path) -> None:
        parsed.append(parse())
        if not is_unchanged():
            raise OSError("the files changed while they were read")
        _write(partial, parsed[0])

    try:
        cache.parent.mkdir(parents=True, exist_ok=True)
        with suppress(FileExistsError):
            cache.mkdir(mode=0o700)
        if not is_ours(cache):
            return parse()
        tables = load_or_write(cache / name, _SUFFIXES, _read, write, report_progress, "the parsed table")
        with suppress(OSError):
            # The time of use, by which `_limit_size` orders the tables.
            os.utime(cache / name / META)
    except OSError:
        # Nothing is cached, so the next start parses again.
        return parsed[0] if parsed else parse()
    if parsed:
        # From here on the mapped arrays are used, so the parsed ones need not stay in memory.
        parsed.clear()
        pa.default_memory_pool().release_unused()
        _limit_size(cache, name)
    return tables


def _write(partial: Path, tables: ParsedTables) -> None:
    splits: dict[str, dict[str, object]] = {}
    count = 0
    total_bytes = 0
    for split, source in tables.splits.items():
        splits[split] = {}
        for name, array in source.arrays.items():
            total_bytes += array.nbytes
            if total_bytes > MAX_BYTES:
                raise OSError("the table is larger than the limit for all tables")
            # Numbered, because a column's name need not be a valid file name.
            file_name = f"{count}.npy"
            with (partial / file_name).open("wb") as file:
                np.save(file, array, allow_pickle=False)
                file.flush()
                os.fsync(file.fileno())
            splits[split][name] = {"file": file_name, "spec": asdict(source.specs[name])}
            count += 1
    content = {"format": FORMAT, "splits": splits, "categories": tables.categories}
    (partial / META).write_text(json.dumps(content), "utf-8")


def _read(table: Path) -> ParsedTables | None:
    """Maps a cached table; None if it is missing, incomplete or of another format."""
    try:
        content = json.loads((table / META).read_text("utf-8"))
        if content["format"] != FORMAT:
            return None
        splits = {split: _map_arrays(table, columns) for split, columns in content["splits"].items()}
        categories = {name: tuple(strings) for name, strings in content["categories"].items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    return ParsedTables(splits, categories)


def _map_arrays(table: Path, columns: Mapping[str, Mapping[str, object]]) -> ArraySource:
    arrays = {}
    specs = {}
    for name, column in columns.items():
        # Content of another form raises one of the errors that `_read` expects.
        fields = dict(column["spec"])  # type: ignore[call-overload]
        spec = ArraySpec(tuple(fields["shape"]), fields["dtype"], tuple(fields["dims"]), tuple(fields["names"]))
        # Only the file's name, so that a manipulated record can't name a file outside the folder.
        path = table / Path(str(column["file"])).name
        array = np.load(path, mmap_mode="r", allow_pickle=False)
        if (array.shape[1:], str(array.dtype)) != (spec.shape, spec.dtype):
            raise ValueError(f"{path} does not match its spec")
        arrays[name] = array
        specs[name] = spec
    return ArraySource(arrays, specs)


def _limit_size(cache: Path, newest: str) -> None:
    """Deletes the least recently used tables while all together exceed the limit."""
    tables = []
    total = 0
    with suppress(OSError):
        for meta in cache.glob(f"*/{META}"):
            size = sum(file.stat().st_size for file in meta.parent.glob("*.npy"))
            is_newest = meta.parent.name == newest
            tables.append((is_newest, meta.stat().st_mtime, size, meta.parent))
            total += size
    for is_newest, _, size, table in sorted(tables):
        if total <= MAX_BYTES or is_newest:
            return
        # Windows does not delete a file that another process has mapped.
        with suppress(OSError, DataError):
            prepared.remove(table, _SUFFIXES)
            total -= size

"""Digests of data: a sha256 of arrays or files, which does not depend on the machine."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import chain
from pathlib import Path

import numpy as np

from runner.data.base import Array
from runner.data.cache import cache_folder
from runner.errors import DataError
from runner.host import cores

# Bytes per update of the hash: a memory-mapped array is then never in RAM as a whole.
_CHUNK_BYTES = 1 << 24
# The digest of a smaller file takes less time than its record.
_RECORDED_BYTES = 1 << 20
# File systems store times with a resolution of up to 2 s (FAT). A file that changed this recently may change again
# without a new time, so its digest is not recorded.
_CLOCK_TICK_NS = 3_000_000_000


def digest(splits: Iterable[tuple[str, Mapping[str, Array]]]) -> str:
    """Hashes splits, in the order of their names: names, dtypes, shapes and bytes of the arrays; sha256 as hex."""
    total = hashlib.sha256()
    for split, arrays in sorted(splits, key=lambda entry: entry[0]):
        for name, array in arrays.items():
            total.update(f"{split} {name} {array.dtype.str} {array.shape}".encode())
            row_bytes = max(1, array[:1].nbytes)
            rows = max(1, _CHUNK_BYTES // row_bytes)
            for start in range(0, len(array), rows):
                total.update(np.ascontiguousarray(array[start : start + rows]).data)
    return total.hexdigest()


def of_files(splits: Mapping[str, Sequence[Path]]) -> str:
    """Hashes the content of files, by split and in their order; only the name of a .npy file matters."""
    files = list(chain.from_iterable(splits.values()))
    with ThreadPoolExecutor(cores.available()) as pool:
        digests = dict(zip(files, pool.map(_of_file, files), strict=True))
    total = hashlib.sha256()
    for split, split_files in sorted(splits.items()):
        for file in split_files:
            # It is the array's name.
            name = file.name if file.suffix == ".npy" else file.suffix
            total.update(f"{split} {name} {digests[file]}\n".encode())
    return total.hexdigest()


def _of_file(path: Path) -> str:
    """Returns a file's sha256, which is recorded by its size and ctime, which no program can set back."""
    try:
        stat = path.stat()
        key = f"{path.resolve()}\0{stat.st_size}\0{stat.st_ctime_ns}"
        record = cache_folder("digests") / hashlib.sha256(key.encode()).hexdigest()[:32]
        with suppress(OSError):
            return record.read_text()
        with path.open("rb") as opened:
            sha256 = hashlib.file_digest(opened, "sha256").hexdigest()
    except OSError as error:
        raise DataError(f"{path} can't be read: {error.strerror or error}") from error
    if stat.st_size >= _RECORDED_BYTES and stat.st_ctime_ns < time.time_ns() - _CLOCK_TICK_NS:
        # The folder may be read-only: the file is then read again.
        with suppress(OSError):
            record.parent.mkdir(parents=True, exist_ok=True)
            partial = record.with_suffix(f".{os.getpid()}")
            partial.write_text(sha256)
            partial.replace(record)
    return sha256

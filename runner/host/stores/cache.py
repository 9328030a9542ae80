"""A local copy of the objects that were read, by their SHA-256.

The same checkpoint is read by several commands and by all processes of a machine, but is transferred once. The copies
are in the folder that XDG_CACHE_HOME names, else in ~/.cache. The least recently used are removed beyond a bound.
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from runner.host.folders import cache_folder
from runner.host.lock import locked
from runner.host.paths import random_part
from runner.host.stores import client
from runner.host.stores.urls import ObjectPath

# Bytes of all copies. What this process has fetched stays in any case, so a larger checkpoint can be read.
LARGEST = 20 << 30

_SHA256 = re.compile(r"[0-9a-f]{64}", re.ASCII)

_SPOOL = "spool-"
_UNFINISHED = ".unfinished-"

# Seconds after which a folder of files that wait for their upload, or a copy that is not whole, is abandoned: no
# upload takes a day, and a download writes all the time.
LEFT_S = 86400.0

# Copies that this process has fetched, and may read again.
_used: set[Path] = set()


class MismatchError(RuntimeError):
    """An object that does not have the bytes that were written."""


def folder() -> Path:
    """Returns the folder of the copies."""
    return cache_folder("objects")


def fetch(path: ObjectPath, sha256: str, size: int, *, trusted: bool = False) -> Path:
    """Returns the local copy of an object, which is transferred if there is none.

    Args:
      path: of the object.
      sha256: its digest, in hexadecimal.
      size: its bytes.
      trusted: does not hash an existing copy again, because another process of the run has.

    Raises:
      FileNotFoundError: there is no such object.
      MismatchError: it has other bytes.
      OSError: it can't be read, or the disk is full.
    """
    if not _SHA256.fullmatch(sha256):
        raise MismatchError(f"{path} has an invalid SHA-256")
    copy = folder() / sha256
    copy.parent.mkdir(parents=True, exist_ok=True)
    # Of the processes on this machine that need the object, one transfers it. There are 256 lock files.
    with locked(folder() / f"{sha256[:2]}.lock"):
        if not _is_whole(copy, sha256, size, trusted=trusted):
            _make_room(size)
            _transfer(path, copy, sha256, size)
        _used.add(copy)
        # `_make_room` removes those copies first whose time is the oldest.
        os.utime(copy)
    return copy


def _is_whole(copy: Path, sha256: str, size: int, *, trusted: bool) -> bool:
    """Returns whether a copy exists and has the object's bytes."""
    try:
        if copy.is_symlink() or copy.stat().st_size != size:
            return False
        if trusted:
            return True
        with copy.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest() == sha256
    except FileNotFoundError:
        return False


def _transfer(path: ObjectPath, copy: Path, sha256: str, size: int) -> None:
    """Writes a copy, hashed while it arrives; it gets its name when it is whole."""
    temporary = copy.with_name(f"{_UNFINISHED}{copy.name[:8]}-{random_part()}")
    digest = hashlib.sha256()
    received = 0
    try:
        with temporary.open("xb") as file:
            for piece in client.pieces(path):
                received += len(piece)
                # At once and not only at the end: an object that has become larger must not fill the disk.
                if received > size:
                    raise MismatchError(f"{path} has more than the {size:,} bytes that were written")
                digest.update(piece)
                file.write(piece)
        if received != size:
            raise MismatchError(f"{path} has {received:,} bytes, but {size:,} were written")
        if digest.hexdigest() != sha256:
            raise MismatchError(f"{path} is corrupted (SHA-256 mismatch)")
        temporary.replace(copy)
    except OSError as error:
        if error.errno == errno.ENOSPC:
            raise OSError(errno.ENOSPC, f"no space left for a copy in {copy.parent}") from None
        raise
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def spool() -> Iterator[Path]:
    """Yields a new folder on the local disk for files that wait for their upload; it is removed at the end.

    Raises:
      OSError: the disk is full or read-only.
    """
    folder().mkdir(parents=True, exist_ok=True)
    _remove_abandoned()
    own = Path(tempfile.mkdtemp(prefix=_SPOOL, dir=folder()))
    try:
        yield own
    finally:
        shutil.rmtree(own, ignore_errors=True)


def _remove_abandoned() -> None:
    """Removes what processes that were killed have left."""
    for left in (*folder().glob(f"{_SPOOL}*"), *folder().glob(f"{_UNFINISHED}*")):
        with suppress(OSError):
            if time.time() - left.lstat().st_mtime <= LEFT_S:
                continue
            if left.name.startswith(_SPOOL):
                shutil.rmtree(left)
            else:
                left.unlink()


def _make_room(size: int) -> None:
    """Removes the least recently used copies until one of `size` bytes fits within the bound."""
    _remove_abandoned()
    copies: list[tuple[float, int, Path]] = []
    for copy in folder().iterdir():
        # Another process may remove one at the same time.
        with suppress(OSError):
            if _SHA256.fullmatch(copy.name):
                entry = copy.lstat()
                copies.append((entry.st_mtime, entry.st_size, copy))
    total = size + sum(bytes_of_copy for _, bytes_of_copy, _ in copies)
    for _, bytes_of_copy, copy in sorted(copies):
        if total <= LARGEST:
            break
        if copy in _used:
            continue
        with suppress(OSError):
            copy.unlink()
            total -= bytes_of_copy

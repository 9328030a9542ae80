"""Local copies of objects, and files that wait for their upload, in a folder of the process in the user's cache."""

from __future__ import annotations

import errno
import hashlib
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path

from runner.host.folders import cache_folder
from runner.host.stores import client
from runner.host.stores.urls import ObjectPath

_PREFIX = "spool-"
# Seconds after which the folder of a process that was killed is removed: no upload or download takes a day.
LEFT_S = 86400.0


class MismatchError(RuntimeError):
    """An object that does not have the bytes that were written."""


def folder() -> Path:
    """Returns the folder with one folder per process."""
    return cache_folder("objects")


@contextmanager
def spool() -> Iterator[Path]:
    """Yields a new folder on the local disk, which is removed at the end; raises OSError if that is full."""
    with _new_folder() as own:
        yield Path(own)


def _new_folder() -> tempfile.TemporaryDirectory[str]:
    folder().mkdir(parents=True, exist_ok=True)
    for left in folder().glob(f"{_PREFIX}*"):
        with suppress(OSError):
            if time.time() - left.lstat().st_mtime > LEFT_S:
                shutil.rmtree(left)
    return tempfile.TemporaryDirectory(prefix=_PREFIX, dir=folder(), ignore_cleanup_errors=True)


@cache
def _copies() -> tempfile.TemporaryDirectory[str]:
    """Returns the folder of this process's copies, which is removed as the process ends."""
    return _new_folder()


def fetch(path: ObjectPath, sha256: str, size: int) -> Path:
    """Returns this process's copy of an object with this SHA-256 and so many bytes, hashed as it arrives.

    Raises:
      FileNotFoundError: there is no such object.
      MismatchError: it has other bytes.
      OSError: it can't be read, or the disk is full.
    """
    # By a digest of our own: the recorded one may be any text.
    copy = Path(_copies().name) / hashlib.sha256(f"{path} {sha256}".encode()).hexdigest()
    if copy.exists():
        return copy
    temporary = copy.with_suffix(".part")
    digest = hashlib.sha256()
    received = 0
    try:
        with temporary.open("wb") as file:
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
    except BaseException as error:
        temporary.unlink(missing_ok=True)
        if isinstance(error, OSError) and error.errno == errno.ENOSPC:
            raise OSError(errno.ENOSPC, f"no space left for a copy in {copy.parent}") from None
        raise
    return copy

"""Files of checkpoints: read with care, since a folder may come from anyone, and written so that they last."""

from __future__ import annotations

import hashlib
import json
import os
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from io import BufferedReader
from pathlib import Path
from typing import Any

from runner.errors import ConfigError

LARGEST_RECORD = 4 << 20  # bytes of best.json and run.json; a command line has two million at most
_DEEPEST = 64  # levels of JSON; a config has six, and a parser's or walker's stack holds some hundreds
# A link would lead out of the folder, and opening a FIFO waits for whoever writes into it.
NO_SURPRISE = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)


class DamagedError(ConfigError):
    """A file of a run or checkpoint that is missing, or not as it was written."""


@contextmanager
def opened(path: Path) -> Iterator[BufferedReader]:
    """Opens a regular file for reading; what is none is not even opened.

    Raises:
      DamagedError: it is missing, a link, a folder, a device or the like, or can't be read.
    """
    try:
        if not stat.S_ISREG(path.lstat().st_mode):
            raise DamagedError(f"{path} is not a regular file")
        with os.fdopen(os.open(path, os.O_RDONLY | NO_SURPRISE), "rb") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise DamagedError(f"{path} is not a regular file")
            yield file
    except FileNotFoundError:
        raise DamagedError(f"{path} is missing") from None
    except OSError as error:
        raise DamagedError(f"{path} can't be read: {error.strerror}") from error


def read_json(path: Path, largest: int) -> dict[str, Any]:
    """Reads a mapping.

    Args:
      path: of the file.
      largest: bytes that it may have.

    Raises:
      DamagedError: it can't be opened, is larger, or is no JSON mapping in which each key stands once.
    """
    with opened(path) as file:
        if os.fstat(file.fileno()).st_size > largest:
            raise DamagedError(f"{path} has more than {largest:,} bytes")
        data = file.read(largest)
    try:
        found = json.loads(data.decode(), object_pairs_hook=_unique)
    except (ValueError, RecursionError) as error:
        raise DamagedError(f"{path} can't be read") from error
    if not isinstance(found, dict) or _is_deep(found):
        raise DamagedError(f"{path} can't be read: it must hold a mapping of at most {_DEEPEST} levels")
    return found


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key stands twice")
    return found


def _is_deep(value: object) -> bool:
    level = [value]
    for _ in range(_DEEPEST):
        inner = [one for one in level if isinstance(one, dict | list)]
        level = [item for one in inner for item in (one.values() if isinstance(one, dict) else one)]
    return bool(level)


def digest(path: Path) -> str:
    """Returns a file's SHA-256.

    Raises:
      DamagedError: it can't be opened.
    """
    with opened(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def is_folder(path: Path) -> bool:
    """Returns whether a folder lies there, and no link to one."""
    try:
        return stat.S_ISDIR(path.lstat().st_mode)
    except OSError:
        return False


def write_synced(path: Path, data: bytes) -> None:
    """Writes a new file that is on the disk when this returns.

    Raises:
      OSError: something is there already, or the disk is full.
    """
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | NO_SURPRISE, 0o666)
    with os.fdopen(handle, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    sync_folder(path.parent)


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Writes a small file that appears whole or not at all, and is on the disk when this returns.

    Raises:
      OSError: the disk is full, or can't be written.
    """
    making = path.with_name(f".unfinished-{path.name}-{os.getpid()}")
    with suppress(FileNotFoundError):  # of a process that died, whose number this one has got
        making.unlink()
    try:
        write_synced(making, (json.dumps(content, indent=1) + "\n").encode())
        making.replace(path)
    except OSError:
        with suppress(OSError):
            making.unlink()
        raise
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Makes a rename last; systems that can't open a folder need no such thing."""
    if os.name == "posix":
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)

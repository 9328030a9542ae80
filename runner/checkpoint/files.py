"""File access of checkpoints: defensive reads, because a folder may come from anyone, and durable writes."""

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
from runner.host.folders import OWN_MODE
from runner.host.stores import client
from runner.host.stores.urls import ObjectPath, Place

# Bytes of best.json and run.json. A command line has two million bytes at most, so twice that holds every record, and
# a larger file from elsewhere takes no memory.
LARGEST_RECORD = 4 << 20

# Levels of nesting in JSON. A config has six; the stacks of the parser and of functions that walk the values hold some
# hundreds.
_MAX_DEPTH = 64

# A link would lead out of the folder, and opening a FIFO blocks until somebody writes into it.
SAFE_OPEN_FLAGS = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)


class DamagedError(ConfigError):
    """A file of a run or checkpoint that is missing, corrupted or invalid."""


@contextmanager
def opened(path: Path) -> Iterator[BufferedReader]:
    """Opens a regular file for reading; anything else is not even opened.

    Raises:
      DamagedError: the file is missing, a link, a folder, a device or the like, or unreadable.
    """
    try:
        # Checked before the file is opened, because opening a device may have effects, and once more on the open file,
        # because another process may have replaced it in between.
        if not stat.S_ISREG(path.lstat().st_mode):
            raise DamagedError(f"{path} is not a regular file")
        with os.fdopen(os.open(path, os.O_RDONLY | SAFE_OPEN_FLAGS), "rb") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise DamagedError(f"{path} is not a regular file")
            yield file
    except FileNotFoundError:
        raise DamagedError(f"{path} is missing") from None
    except OSError as error:
        raise DamagedError(f"{path} can't be read: {error.strerror}") from error


def read_json(path: Place, largest: int) -> dict[str, Any]:
    """Reads a JSON object.

    Args:
      path: the file, or an object of a store.
      largest: the largest accepted size in bytes.

    Raises:
      DamagedError: the file can't be opened, is larger, or is not a JSON object with unique keys.
    """
    data = _read_bounded(path, largest)
    try:
        content = json.loads(data.decode(), object_pairs_hook=_with_unique_keys)
    except (ValueError, RecursionError) as error:
        raise DamagedError(f"{path} can't be read: it is not valid JSON") from error
    if not isinstance(content, dict) or _is_too_deep(content):
        raise DamagedError(f"{path} can't be read: it must hold a JSON object of at most {_MAX_DEPTH} levels")
    return content


def _read_bounded(path: Place, largest: int) -> bytes:
    """Returns the content of a small file; raises DamagedError.

    A store that does not answer is no damage, for which a run would continue from an earlier checkpoint: its error is
    not caught.
    """
    if isinstance(path, ObjectPath):
        try:
            return client.read(path, largest)
        except FileNotFoundError:
            raise DamagedError(f"{path} is missing") from None
        except client.TooLargeError as error:
            raise DamagedError(str(error)) from None
    with opened(path) as file:
        if os.fstat(file.fileno()).st_size > largest:
            raise DamagedError(f"{path} is larger than {largest:,} bytes")
        return file.read(largest)


def _with_unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    # Python's parser would keep the last of several equal keys. Another reader might keep the first.
    content = dict(pairs)
    if len(content) != len(pairs):
        raise ValueError("a key occurs twice")
    return content


def _is_too_deep(value: object) -> bool:
    # Level by level and not by recursion, which a deep value would exhaust.
    level = [value]
    for _ in range(_MAX_DEPTH):
        next_level: list[object] = []
        for container in level:
            if isinstance(container, dict):
                next_level.extend(container.values())
            elif isinstance(container, list):
                next_level.extend(container)
        level = next_level
    return bool(level)


def digest(path: Path) -> str:
    """Returns the SHA-256 of a file.

    Raises:
      DamagedError: the file can't be opened.
    """
    with opened(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def is_folder(path: Path) -> bool:
    """Returns whether a path is a folder; a link to one is not."""
    try:
        return stat.S_ISDIR(path.lstat().st_mode)
    except OSError:
        return False


def write(path: Place, data: bytes) -> None:
    """Writes a file at once; it is on the disk, or in its store, when this returns.

    Raises:
      OSError: the disk is full or read-only, or the store can't be written.
    """
    if isinstance(path, ObjectPath):
        client.write(path, data)
        return
    temporary = path.with_name(f".unfinished-{path.name}-{os.getpid()}")
    # A process that died may have left a file of this name: the system gives its process id to others again.
    with suppress(FileNotFoundError):
        temporary.unlink()
    try:
        # The content is synced before the rename, else the new name could survive a power cut without its content.
        _write_synced(temporary, data)
        temporary.replace(path)
    except OSError:
        with suppress(OSError):
            temporary.unlink()
        raise
    sync_folder(path.parent)


def _write_synced(path: Path, data: bytes) -> None:
    # Others must not write to it, whatever the umask is: the user's own records are trusted.
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | SAFE_OPEN_FLAGS, 0o644)
    with os.fdopen(handle, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def write_json(path: Place, content: Mapping[str, Any]) -> None:
    """Writes a small file as `write` does."""
    write(path, (json.dumps(content, indent=1) + "\n").encode())


def remove(path: Place) -> None:
    """Removes a regular file, if it exists; a link, a folder or a device stays.

    Raises:
      OSError: it can't be removed.
    """
    if isinstance(path, ObjectPath):
        client.remove(path)
        return
    with suppress(FileNotFoundError):
        if stat.S_ISREG(path.lstat().st_mode):
            path.unlink()


def remove_empty(folder: Place) -> None:
    """Removes a folder if it is empty; a store has no folders."""
    if not isinstance(folder, ObjectPath):
        with suppress(OSError):
            folder.rmdir()


def below(folder: Place) -> dict[str, int]:
    """Returns the bytes of all files below a folder, by their path relative to it; no link is followed.

    Raises:
      OSError: the store does not answer.
    """
    if isinstance(folder, ObjectPath):
        return client.below(folder)
    if not is_folder(folder):
        return {}
    sizes: dict[str, int] = {}
    for path in folder.rglob("*"):
        if not is_folder(path):
            sizes[path.relative_to(folder).as_posix()] = path.lstat().st_size
    return sizes


def names(folder: Place) -> list[str]:
    """Returns the names of a folder's files and folders.

    Raises:
      OSError: there is no such folder, or it can't be read; in a store, a folder that does not exist is empty.
    """
    if isinstance(folder, ObjectPath):
        return client.names(folder)
    return [path.name for path in folder.iterdir()]


def exists(path: Place) -> bool:
    """Returns whether a file exists, of whatever kind.

    Raises:
      OSError: the store does not answer.
    """
    if isinstance(path, ObjectPath):
        return client.size(path) is not None
    return os.path.lexists(path)


def make_folder(folder: Place) -> None:
    """Makes a folder of this user that is on the disk when this returns; a store has no folders.

    Raises:
      OSError: the disk is full or read-only.
    """
    if isinstance(folder, ObjectPath):
        return
    folder.mkdir(OWN_MODE, parents=True, exist_ok=True)
    sync_folder(folder.parent)


def sync_folder(folder: Path) -> None:
    """Makes renames in a folder durable; systems that can't open a folder don't need it."""
    if os.name == "posix":
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)

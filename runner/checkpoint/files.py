"""File access of checkpoints: careful reads, because a folder may come from anyone, and durable writes."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from io import BufferedReader
from pathlib import Path
from typing import Any, TypeVar

from runner.config.build import build, fields_of
from runner.errors import ConfigError, in_one_line
from runner.host.folders import OWN_MODE
from runner.host.stores import client
from runner.host.stores.urls import ObjectPath, Place

Record = TypeVar("Record")

# Bytes of run.json. A command line has two million bytes at most, so twice that holds every record, and
# a larger file from elsewhere takes no memory.
LARGEST_RECORD = 4 << 20

# Entries of a record that a user may edit to end a run by hand.
_EDITABLE = {"ended", "finished", "sha256"}


class DamagedError(ConfigError):
    """A file of a run or checkpoint that is missing, corrupted or invalid."""


@contextmanager
def opened(path: Path) -> Iterator[BufferedReader]:
    """Opens a regular file for reading; raises DamagedError for anything else.

    A link would lead out of the folder, and opening a FIFO blocks until somebody writes into it.
    """
    try:
        if not stat.S_ISREG(path.lstat().st_mode):
            raise DamagedError(f"{path} is not a regular file")
        with path.open("rb") as file:
            yield file
    except FileNotFoundError:
        raise DamagedError(f"{path} is missing") from None
    except OSError as error:
        raise DamagedError(f"{path} can't be read: {error.strerror}") from error


def read_json(path: Place, largest: int) -> dict[str, Any]:
    """Reads a JSON object of at most `largest` bytes; raises DamagedError.

    A store that does not answer is no damage, for which a run would continue from an earlier checkpoint: its error is
    not caught.
    """
    if isinstance(path, ObjectPath):
        try:
            data = client.read(path, largest)
        except FileNotFoundError:
            raise DamagedError(f"{path} is missing") from None
        except client.TooLargeError as error:
            raise DamagedError(str(error)) from None
    else:
        with opened(path) as file:
            if os.fstat(file.fileno()).st_size > largest:
                raise DamagedError(f"{path} is larger than {largest:,} bytes")
            data = file.read(largest)
    try:
        content = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise DamagedError(f"{path} can't be read: it is not valid JSON") from error
    if not isinstance(content, dict):
        raise DamagedError(f"{path} can't be read: it must hold a JSON object")
    return content


def as_record(kind: type[Record], content: Mapping[str, object], path: Place) -> Record:
    """Returns JSON as a dataclass; other entries are ignored; raises DamagedError for a value of another type."""
    known = {name: content[name] for name in fields_of(kind) if name in content}
    try:
        return build(kind, known, "it", strict=True)
    except ConfigError as error:
        raise DamagedError(f"{path} is invalid: {in_one_line(str(error))}") from None


def sealed(content: Mapping[str, object]) -> dict[str, Any]:
    """Returns a record with its own SHA-256 in it."""
    return {**content, "sha256": _seal(content)}


def unsealed(content: Mapping[str, object], path: Place) -> dict[str, Any]:
    """Returns a record without its SHA-256; raises DamagedError if that is another one."""
    if content.get("sha256") != _seal(content):
        raise DamagedError(f"{path} is corrupted (SHA-256 mismatch)")
    return {key: value for key, value in content.items() if key != "sha256"}


def _seal(content: Mapping[str, object]) -> str:
    covered = {key: value for key, value in content.items() if key not in _EDITABLE}
    return hashlib.sha256(json.dumps(covered, sort_keys=True).encode()).hexdigest()


def digest(path: Path) -> str:
    """Returns the SHA-256 of a file; raises DamagedError."""
    with opened(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def is_folder(path: Path) -> bool:
    """Returns whether a path is a folder; a link to one is not."""
    return path.is_dir() and not path.is_symlink()


def write(path: Place, data: bytes) -> None:
    """Writes a file at once; it is on the disk, or in its store, when this returns."""
    if isinstance(path, ObjectPath):
        client.write(path, data)
        return
    temporary = path.with_name(f".unfinished-{path.name}-{os.getpid()}")
    # A process that died may have left a file of this name: the system gives its process id to others again.
    temporary.unlink(missing_ok=True)
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
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644), "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def write_json(path: Place, content: Mapping[str, object]) -> None:
    """Writes a small file as `write` does."""
    write(path, (json.dumps(content, indent=1) + "\n").encode())


def remove(path: Place) -> None:
    """Removes a regular file, if it exists; a link, a folder or a device stays."""
    if isinstance(path, ObjectPath):
        client.remove(path)
    elif path.is_file() and not path.is_symlink():
        path.unlink(missing_ok=True)


def remove_folder(folder: Place) -> None:
    """Removes a folder with all that is in it; a link stays."""
    if isinstance(folder, ObjectPath):
        for name in client.below(folder):
            client.remove(folder / name)
    elif is_folder(folder):
        shutil.rmtree(folder)


def remove_empty(folder: Place) -> None:
    """Removes a folder if it is empty; a store has no folders."""
    if not isinstance(folder, ObjectPath):
        with suppress(OSError):
            folder.rmdir()


def names(folder: Place) -> list[str]:
    """Returns the names in a folder; none if a local one can't be read; raises OSError for a silent store."""
    if isinstance(folder, ObjectPath):
        return client.names(folder)
    try:
        return [path.name for path in folder.iterdir()]
    except OSError:
        return []


def exists(path: Place) -> bool:
    """Returns whether a file exists, of whatever kind; raises OSError if the store does not answer."""
    if isinstance(path, ObjectPath):
        return client.size(path) is not None
    return os.path.lexists(path)


def make_folder(folder: Place) -> None:
    """Makes a folder of this user that is on the disk when this returns; a store has no folders."""
    if not isinstance(folder, ObjectPath):
        folder.mkdir(OWN_MODE, parents=True, exist_ok=True)
        sync_folder(folder.parent)


def sync_folder(folder: Path) -> None:
    """Makes renames in a folder durable."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)

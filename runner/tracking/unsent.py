"""Files of records that could not be stored: lines of JSON, which `runner.tracking.replaying` stores later.

A file is this user's statement about one run. It is accepted only if this user owns it and nobody else can write
to it. The first line, its head, names the run and the store.
"""

from __future__ import annotations

import json
import os
import re
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from runner.errors import TrackingError
from runner.host.folders import is_own
from runner.host.lock import locked
from runner.host.outputs import append_whole
from runner.tracking import unsent_folders
from runner.tracking.location import fingerprint, shown
from runner.tracking.records import Record, from_json, to_json

# O_NONBLOCK: opening a FIFO that somebody put there must not wait.
_OPEN_FLAGS = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)


class NotOursError(ValueError):
    """A file that this user did not write, or that another user may have written."""


@dataclass(frozen=True)
class UnsentFile:
    """Contents of a file.

    Attributes:
      head: run_id, uri and store.
      records: the records, in order.
    """

    head: dict[str, str]
    records: list[Record]


def write(path: Path, uri: str, run_id: str, records: Sequence[Record]) -> None:
    """Appends records to a file, and returns when they are on disk.

    Args:
      path: the file; its head, written once, names the run and the store, without a password.
      uri: absolute tracking URI.
      run_id: the run that the records belong to.
      records: what could not be stored.

    Raises:
      OSError: the disk is full or can't be written, and the file is as before.
      ValueError: the file is another user's or run's, or damaged.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with locked(lock_path(path)):
        append(path, {"run_id": run_id, "uri": shown(uri), "store": fingerprint(uri)}, records)


def write_somewhere(root: Path, name: str, uri: str, run_id: str, records: Sequence[Record]) -> Path:
    """Writes records to the first of `unsent_folders.folders` that accepts them.

    See `write`.

    Args:
      root: the project's folder.
      name: name of the file.
      uri: absolute tracking URI.
      run_id: the run that the records belong to.
      records: what could not be stored.

    Returns:
      The file.

    Raises:
      TrackingError: none of the folders can be written.
    """
    failures = []
    for unsent_folder in unsent_folders.folders(root):
        try:
            unsent_folders.make(unsent_folder, root)
            write(unsent_folder / name, uri, run_id, records)
        # ValueError: an existing file may be another user's, or damaged.
        except (OSError, ValueError) as error:
            failures.append(f"{unsent_folder}: {getattr(error, 'strerror', None) or error}")
        else:
            return unsent_folder / name
    raise TrackingError(f"no folder can be written ({'; '.join(failures)})")


def append(path: Path, head: dict[str, str], records: Sequence[Record]) -> None:
    """Appends records to a file whose lock is held.

    Args:
      path: the file.
      head: its first line, if there is no file yet.
      records: what to append.

    Raises:
      OSError: it can't be written, and is as before.
      ValueError: the file is another user's or run's, or damaged.
    """
    is_new = not os.path.lexists(path)
    if is_new:
        # O_EXCL: never through a link that somebody puts there at this moment.
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
    try:
        data = _lines_to_append(path, head, records)
        append_whole(path, data, sync=True)
    except (OSError, ValueError):
        if is_new:
            path.unlink(missing_ok=True)
        raise


def _lines_to_append(path: Path, head: dict[str, str], records: Sequence[Record]) -> bytes:
    """Returns the lines to append; cuts off an incomplete last line of the file."""
    data = _read_bytes(path)
    complete = data.rfind(b"\n") + 1
    if complete < len(data):
        os.truncate(path, complete)
    lines = list(map(to_json, records))
    if not complete:
        lines.insert(0, json.dumps(head))
    elif parse(path, data[:complete]).head["run_id"] != head["run_id"]:
        raise ValueError(f"{path} is of another run")
    return "".join(f"{line}\n" for line in lines).encode()


def read(path: Path) -> UnsentFile:
    """Reads a file.

    Raises:
      NotOursError: it belongs to another user, or others can write to it.
      ValueError: it is not a file of unsent records.
      FileNotFoundError: there is no such file.
    """
    return parse(path, _read_bytes(path))


def read_first_line(path: Path) -> str:
    """Returns a file's first line; raises as `read` does."""
    with _open_own(path) as handle, os.fdopen(os.dup(handle), encoding="utf-8") as file:
        return file.readline()


def _read_bytes(path: Path) -> bytes:
    with _open_own(path) as handle, os.fdopen(os.dup(handle), "rb") as file:
        return file.read()


@contextmanager
def _open_own(path: Path) -> Iterator[int]:
    """Opens a file that this user owns and that nobody else can write to."""
    try:
        handle = os.open(path, _OPEN_FLAGS)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise NotOursError(f"it can't be opened ({error.strerror})") from error
    try:
        # The open file is checked, not its path, which could lead to another file by now.
        status = os.fstat(handle)
        if not stat.S_ISREG(status.st_mode):
            raise NotOursError("not a regular file")
        if not is_own(status):
            raise NotOursError("another user owns it, or can write to it")
        yield handle
    finally:
        os.close(handle)


def parse(path: Path, data: bytes) -> UnsentFile:
    """Parses the bytes of a file.

    Args:
      path: the file, for messages.
      data: its content.

    Raises:
      ValueError: it is not a file of unsent records.
    """
    lines = data.split(b"\n")
    if len(lines) > 1 and lines[-1]:
        # Its writer died in the middle of this line.
        lines = lines[:-1]
    try:
        texts = list(map(bytes.decode, filter(None, lines)))
        content = json.loads(texts[0])
        head = {name: str(content[name]) for name in ("run_id", "uri", "store")}
        records = list(map(from_json, texts[1:]))
    except (IndexError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{path} is not a file of unsent records") from error
    if not re.fullmatch(r"[\w-]+", head["run_id"]):
        raise ValueError(f"{path} does not name a run")
    return UnsentFile(head, records)


def lock_path(path: Path) -> Path:
    """Returns the lock file for all files of a folder."""
    return path.parent / ".lock"

"""Files of records that could not be stored: signed JSON lines.

`runner.tracking.replaying` stores them later.

A file is this user's statement about one run. It is accepted only if this user owns it, nobody else can write to it,
and every line is signed with the key next to its folder (`outputs/.key`). The first line, its head, names the run, the
store and the run's folder.
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
from runner.host import key
from runner.host.folders import is_own
from runner.host.lock import locked
from runner.host.outputs import append_whole
from runner.tracking import unsent_folders
from runner.tracking.location import fingerprint, shown
from runner.tracking.records import Artifact, Ending, Record, from_json, to_json
from runner.tracking.signed import Chain, is_signed

NOT_SIGNED = "not signed with this project's key"
_OTHER_KEY = "signed with another key, or changed since it was signed"
_STATUSES = ("FINISHED", "FAILED", "KILLED")
# O_NONBLOCK: opening a FIFO that somebody put there must not wait.
_OPEN_FLAGS = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)


class NotOursError(ValueError):
    """A file that this user did not write, or that another user may have written."""


@dataclass(frozen=True)
class UnsentFile:
    """Contents of a file.

    Attributes:
      head: run_id, uri, store, and the run's folder, which may be empty.
      records: the records, in order.
      is_signed: every line is signed with the key.
      texts: the complete lines of the file, with their signatures.
    """

    head: dict[str, str]
    records: list[Record]
    is_signed: bool
    texts: list[str]


def write(path: Path, uri: str, run_id: str, records: Sequence[Record], folder: Path | None = None) -> None:
    """Appends signed records to a file, and returns when they are on disk.

    Args:
      path: the file; its head, written once, names the run and the store, without a password.
      uri: absolute tracking URI.
      run_id: the run that the records belong to.
      records: what could not be stored.
      folder: the run's own folder, which has the files to upload.

    Raises:
      OSError: the disk is full or can't be written, and the file is as before; or the file or its key belongs to
        another user.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    head = {"run_id": run_id, "uri": shown(uri), "store": fingerprint(uri), "folder": str(folder or "")}
    key_folder = path.parent.parent
    with locked(lock_path(path)):
        secret = key.read_own(key_folder)
        if not secret:
            key.make(key_folder)
            # Read again: another process may have made it first, or another user.
            secret = key.read_own(key_folder)
        if not secret:
            raise PermissionError(f"{key_folder / key.NAME} is not a private key of this user")
        append(path, head, records, secret)


def write_somewhere(
    root: Path, name: str, uri: str, run_id: str, records: Sequence[Record], folder: Path | None = None
) -> Path:
    """Writes records to the first of `unsent_folders.folders` that accepts them.

    See `write`.

    Args:
      root: the project's folder.
      name: name of the file.
      uri: absolute tracking URI.
      run_id: the run that the records belong to.
      records: what could not be stored.
      folder: the run's own folder.

    Returns:
      The file.

    Raises:
      TrackingError: none of the folders can be written.
    """
    failures = []
    for unsent_folder in unsent_folders.folders(root):
        try:
            unsent_folders.make(unsent_folder, root)
            write(unsent_folder / name, uri, run_id, records, folder)
        # ValueError: an existing file may be another user's, damaged, or signed with a key that no longer exists.
        except (OSError, ValueError) as error:
            failures.append(f"{unsent_folder}: {getattr(error, 'strerror', None) or error}")
        else:
            return unsent_folder / name
    raise TrackingError(f"no folder can be written ({'; '.join(failures)})")


def append(path: Path, head: dict[str, str], records: Sequence[Record], secret: bytes) -> None:
    """Appends records to a file whose lock is held.

    Without a key they are not signed.

    Args:
      path: the file.
      head: its first line, if there is no file yet.
      records: what to append.
      secret: the key; empty: none.

    Raises:
      OSError: it can't be written, and is as before; or the file is not one of this run and key.
      ValueError: the file is another user's, or damaged.
    """
    is_new = not os.path.lexists(path)
    if is_new:
        # O_EXCL: never through a link that somebody puts there at this moment.
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
    try:
        data = _lines_to_append(path, head, records, secret)
        append_whole(path, data, sync=True)
    except (OSError, ValueError):
        if is_new:
            path.unlink(missing_ok=True)
        raise


def _lines_to_append(path: Path, head: dict[str, str], records: Sequence[Record], secret: bytes) -> bytes:
    """Returns the lines to append; cuts off an incomplete last line of the file."""
    data = _read_bytes(path)
    complete = data.rfind(b"\n") + 1
    if complete < len(data):
        os.truncate(path, complete)
    chain = Chain(secret)
    lines = []
    if complete:
        existing = parse(path, data[:complete], secret)
        if existing.is_signed != bool(secret) or existing.head["run_id"] != head["run_id"]:
            raise PermissionError(f"{path} is {NOT_SIGNED}")
        # Each signature covers those before it.
        for text in existing.texts:
            chain.check(text)
    else:
        lines.append(json.dumps(head))
    lines += map(to_json, records)
    if secret:
        lines = list(map(chain.sign, lines))
    return "".join(f"{line}\n" for line in lines).encode()


def read(path: Path, secret: bytes) -> UnsentFile:
    """Reads a file.

    Args:
      path: the file.
      secret: the key; empty: none.

    Raises:
      NotOursError: it belongs to another user, is signed with another key, or was changed.
      ValueError: it is not a file of unsent records.
      FileNotFoundError: there is no such file.
    """
    return parse(path, _read_bytes(path), secret)


def read_first_line(path: Path) -> str:
    """Returns a file's first line, without checking its signature.

    Raises as `read` does.
    """
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


def parse(path: Path, data: bytes, secret: bytes) -> UnsentFile:
    """Parses the bytes of a file.

    Args:
      path: the file, for messages.
      data: its content.
      secret: the key; empty: none.

    Raises:
      NotOursError: it is signed with another key, or was changed.
      ValueError: it is not a file of unsent records.
    """
    lines = data.split(b"\n")
    if len(lines) > 1 and lines[-1]:
        # Its writer died in the middle of this line.
        lines = lines[:-1]
    try:
        texts = list(map(bytes.decode, filter(None, lines)))
        plain_lines = checked(texts, secret)
        head = _parse_head(plain_lines[0])
        records = [_checked_record(from_json(line)) for line in plain_lines[1:]]
    except (IndexError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{path} is not a file of unsent records") from error
    if not re.fullmatch(r"[\w-]+", head["run_id"]):
        raise ValueError(f"{path} does not name a run")
    return UnsentFile(head, records, is_signed(texts[0]), texts)


def _parse_head(line: str) -> dict[str, str]:
    content = json.loads(line)
    head = {name: str(content[name]) for name in ("run_id", "uri", "store")}
    # Earlier releases named no folder.
    head["folder"] = str(content.get("folder", ""))
    return head


def checked(texts: Sequence[str], secret: bytes) -> list[str]:
    """Returns the lines without their signatures.

    If the first line has one, all must be valid.

    Raises:
      NotOursError: a signature is wrong or missing, or there is no key.
    """
    if not is_signed(texts[0]):
        return list(texts)
    chain = Chain(secret)
    plain_lines = []
    for text in texts:
        line = None
        if secret:
            line = chain.check(text)
        if line is None:
            raise NotOursError(_OTHER_KEY)
        plain_lines.append(line)
    return plain_lines


def _checked_record(record: Record) -> Record:
    """Returns a record after checking that it can only affect its own run.

    Raises:
      ValueError: it could affect more.
    """
    if isinstance(record, Ending) and record.status not in _STATUSES:
        raise ValueError(f"{record.status!r} is not the status of a run that has ended")
    if isinstance(record, Artifact):
        folder = Path(record.folder)
        if folder.is_absolute() or ".." in folder.parts:
            raise ValueError(f"{record.folder!r} is not a folder of a run's artifacts")
    return record


def lock_path(path: Path) -> Path:
    """Returns the lock file for all files of a folder."""
    return path.parent / ".lock"

"""Records that could not be stored: a file of JSON lines, and how it is stored later, each record once.

A file is the word of this user about one run. At a start it is taken only if this user owns it, nobody else can write
to it, and every line is signed with the key beside its folder (`outputs/.key`). It is written to the run that its head
names, and uploads files below that run's folder only.
"""

from __future__ import annotations

import json
import os
import re
import stat
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from mlflow import MlflowClient

from runner.errors import TrackingError
from runner.host import key
from runner.host.lock import locked
from runner.host.outputs import append_whole
from runner.host.paths import outputs_dir, project_root
from runner.host.secrets import TRACKING, reveal
from runner.tracking import below, places
from runner.tracking.location import default_uri, fingerprint, shown
from runner.tracking.mlflow_import import quiet
from runner.tracking.reason import reason
from runner.tracking.records import Artifact, Ending, Point, Record, from_json, to_json
from runner.tracking.send import Sender, groups, may_pass
from runner.tracking.signed import Chain, is_signed

_REJECTED = ".rejected.jsonl"
_REPLAY_ATTEMPTS = 3
_REPLAY_DELAY_S = 0.5
Value = TypeVar("Value")


_STATUSES = ("FINISHED", "FAILED", "KILLED")
_UNSIGNED = "not signed with this project's key"
_OTHER_KEY = "signed with another key, or changed since it was signed"
_OPEN = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)


class NotOursError(ValueError):
    """A file that this user did not write, or that cannot be told from one that another user wrote."""


@dataclass(frozen=True)
class _Unsent:
    """What a file holds.

    Attributes:
      head: run_id, uri, store, and the run's folder, which may be empty.
      records: in order.
      is_signed: every line is, with the key.
      texts: the whole lines of the file.
    """

    head: dict[str, str]
    records: list[Record]
    is_signed: bool
    texts: list[str]


def write(path: Path, uri: str, run_id: str, records: Sequence[Record], folder: Path | None = None) -> None:
    """Appends signed records to a file, and does not return before they are on disk.

    Args:
      path: the file; its head, written once, names the run and the store, without a password.
      uri: absolute tracking URI.
      run_id: the run they belong to.
      records: what could not be stored.
      folder: the run's own, in which the files are that are to be uploaded.

    Raises:
      OSError: the disk is full, or can't be written; the file is then as it was. Or what is there is not ours.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    head = {"run_id": run_id, "uri": shown(uri), "store": fingerprint(uri), "folder": str(folder or "")}
    with locked(_lock_path(path)):
        secret = key.read_own(path.parent.parent)
        if not secret:
            key.make(path.parent.parent)
            secret = key.read_own(path.parent.parent)
        if not secret:
            raise PermissionError(f"{path.parent.parent / key.NAME} is not a key of this user's own")
        _write(path, head, records, secret)


def write_somewhere(
    root: Path, name: str, uri: str, run_id: str, records: Sequence[Record], folder: Path | None = None
) -> Path:
    """Writes records to the first of `places.folders` that takes them; see `write`.

    Args:
      root: the project's folder.
      name: of the file.
      uri: absolute tracking URI.
      run_id: the run they belong to.
      records: what could not be stored.
      folder: the run's own.

    Returns:
      The file.

    Raises:
      TrackingError: none of the folders can be written.
    """
    failures = []
    for place in places.folders(root):
        try:
            places.make(place, root)
            write(place / name, uri, run_id, records, folder)
        # A file that is there may be another user's, damaged, or signed with a key that is no more.
        except (OSError, ValueError) as error:
            failures.append(f"{place}: {getattr(error, 'strerror', None) or error}")
        else:
            return place / name
    raise TrackingError(f"no place can be written ({'; '.join(failures)})")


def _write(path: Path, head: dict[str, str], records: Sequence[Record], secret: bytes) -> None:
    """Appends records; without a key they are not signed."""
    is_fresh = not os.path.lexists(path)
    if is_fresh:
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
    try:
        data = _with_records(path, head, records, secret)
        append_whole(path, data, sync=True)
    except (OSError, ValueError):
        if is_fresh:
            path.unlink(missing_ok=True)
        raise


def _with_records(path: Path, head: dict[str, str], records: Sequence[Record], secret: bytes) -> bytes:
    """Returns the bytes to append, and cuts off a last line that its writer did not end."""
    held = _bytes(path)
    whole = held.rfind(b"\n") + 1
    if whole < len(held):
        os.truncate(path, whole)
    chain = Chain(secret)
    lines = [] if whole else [json.dumps(head)]
    if whole:
        there = _parsed(path, held[:whole], secret)
        if there.is_signed != bool(secret) or there.head["run_id"] != head["run_id"]:
            raise PermissionError(f"{path} is {_UNSIGNED}")
        for text in there.texts:
            chain.check(text)
    lines += [to_json(record) for record in records]
    if secret:
        lines = [chain.sign(line) for line in lines]
    return "".join(f"{line}\n" for line in lines).encode()


def replay(path: Path, uri: str | None = None, warn: Callable[[str], None] = str) -> int:  # type: ignore[assignment]
    """Stores the records of a file that a person names; see `_replay`. It may be one that is not signed.

    Args:
      path: a file that `write` made, in this release or the last one.
      uri: tracking URI; null: the one that the file names, or the default one where that is the same store.
      warn: shows one line to the user.

    Returns:
      How many records the file held.

    Raises:
      TrackingError: the store refuses or cannot be reached; the file stays.
      ValueError: the file is none that `write` made, or not this user's.
    """
    return _replay(path, uri, warn, signed_only=False)


def _replay(path: Path, uri: str | None, warn: Callable[[str], None], *, signed_only: bool) -> int:
    """Stores the records of a file and removes it; what the run has already is not stored again.

    Records that the store rejects for good move to `<run id>.rejected.jsonl`.
    """
    quiet()
    with locked(_lock_path(path)):
        if not path.exists():
            return 0  # another process was quicker
        secret = key.read_own(path.parent.parent)
        there = _parsed(path, _bytes(path), secret)
        if signed_only and not there.is_signed:
            raise NotOursError(_UNSIGNED)
        head = there.head
        records = there.records
        client = MlflowClient(tracking_uri=uri or _uri_of(head))
        refused, why = _store(client, there, path)
        if refused and path.name.endswith(_REJECTED):
            raise TrackingError(f"{path}: {len(refused)} of {len(records)} records are rejected again; the file stays")
        if refused:
            rejected = path.with_suffix(_REJECTED)
            _write(rejected, head, refused, secret if there.is_signed else b"")
            warn(f"{len(refused)} of {len(records)} records are rejected and kept in {rejected}: {why}")
        path.unlink()
    return len(records)


def replay_all(root: Path, uri: str, warn: Callable[[str], None]) -> None:
    """Stores every file of a store that lies in `places.folders`; one that can't be stored stays, with a line.

    Args:
      root: the project's folder.
      uri: absolute tracking URI of the store.
      warn: shows one line to the user.
    """
    for line in places.left(root):
        warn(line)
    left: dict[tuple[Path, str], list[str]] = defaultdict(list)
    for path in places.files(root):
        if path.name.endswith(_REJECTED):
            continue
        try:
            if json.loads(_first_line(path))["store"] != fingerprint(uri):
                continue
            if count := _replay(path, uri, warn, signed_only=True):
                warn(f"stored {count} records of run {path.stem} that an earlier run had to keep")
        except FileNotFoundError:
            continue  # another process stored it
        except NotOursError as error:
            left[path.parent, str(error)].append(path.name)
        except (TrackingError, ValueError, KeyError, TypeError, OSError) as error:
            warn(f"{_plain(str(path))} is kept: {reason(error)}")
    for (place, why), names in left.items():
        what = f"{_plain(names[0])} is" if len(names) == 1 else f"{_plain(names[0])} and {len(names) - 1} more are"
        fix = " if you know that they are yours: `python -m runner.tracking.replay FILE`" if why == _UNSIGNED else ""
        warn(f"{what} left in {place}: {why}{fix and ';'}{fix}")


def _plain(name: str) -> str:
    return name if name.isprintable() else ascii(name)


@contextmanager
def _opened(path: Path) -> Iterator[int]:
    """Opens a file that this user owns and that nobody else can write to."""
    try:
        handle = os.open(path, _OPEN)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise NotOursError(f"it can't be opened ({error.strerror})") from error
    try:
        found = os.fstat(handle)
        if not stat.S_ISREG(found.st_mode):
            raise NotOursError("not a file")
        if not key.is_own(found):
            raise NotOursError("another user owns it, or can write to it")
        yield handle
    finally:
        os.close(handle)


def _first_line(path: Path) -> str:
    with _opened(path) as handle, os.fdopen(os.dup(handle), encoding="utf-8") as file:
        return file.readline()


def _bytes(path: Path) -> bytes:
    with _opened(path) as handle, os.fdopen(os.dup(handle), "rb") as file:
        return file.read()


def _parsed(path: Path, data: bytes, secret: bytes) -> _Unsent:
    """Returns what the bytes of a file hold.

    Raises:
      NotOursError: it is signed with another key, or was changed.
      ValueError: it is no such file.
    """
    lines = data.split(b"\n")
    if len(lines) > 1 and lines[-1]:  # its writer died in the middle of this line
        lines = lines[:-1]
    try:
        texts = [line.decode() for line in lines if line]
        plain = _checked(texts, secret)
        head = json.loads(plain[0])
        whole = {name: str(head[name]) for name in ("run_id", "uri", "store")}
        whole["folder"] = str(head.get("folder", ""))
        records = [_bounded(from_json(line)) for line in plain[1:]]
    except (IndexError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{path} is no file of unsent records") from error
    if not re.fullmatch(r"[\w-]+", whole["run_id"]):
        raise ValueError(f"{path} names no run")
    return _Unsent(whole, records, is_signed(texts[0]), texts)


def _checked(texts: Sequence[str], secret: bytes) -> list[str]:
    """Returns the lines without their signatures, which must all be right if the first line has one."""
    if not is_signed(texts[0]):
        return list(texts)
    chain = Chain(secret)
    plain = []
    for text in texts:
        line = chain.check(text) if secret else None
        if line is None:
            raise NotOursError(_OTHER_KEY)
        plain.append(line)
    return plain


def _bounded(record: Record) -> Record:
    """Returns a record that can only mean something inside its own run.

    Raises:
      ValueError: it can't.
    """
    if isinstance(record, Ending) and record.status not in _STATUSES:
        raise ValueError(f"{record.status!r} is no status of a run that has ended")
    if isinstance(record, Artifact):
        inner = Path(record.folder)
        if inner.is_absolute() or ".." in inner.parts:
            raise ValueError(f"{record.folder!r} is no folder among a run's artifacts")
    return record


def _uri_of(head: dict[str, str]) -> str:
    default = default_uri(project_root())
    return default if fingerprint(default) == head["store"] else reveal(TRACKING, head["uri"])


def _store(client: MlflowClient, there: _Unsent, path: Path) -> tuple[list[Record], str]:
    """Stores records; returns those that are rejected for good, and in words why the first one was.

    Raises:
      TrackingError: the store cannot be reached.
    """
    send = Sender(client, there.head["run_id"])
    # Releases that signed nothing named no folder either: their runs wrote into the project's outputs.
    folder = Path(there.head["folder"]) if there.is_signed else outputs_dir()
    refused: list[Record] = []
    why = ""
    try:
        records = _without_stored(send, there.records)
        points_unsure = False
    except Exception as error:
        if may_pass(error):
            raise _not_now(path, error) from error
        records = there.records
        points_unsure = True  # what the store says of the points is said once more, group by group
    for group in groups(records):
        unsure = points_unsure or not isinstance(group[0], Point)
        try:
            with _readied(group, folder) as ready:
                _insist(send, ready, unsure=unsure)
        except Exception as error:
            if may_pass(error):
                raise _not_now(path, error) from error
            refused.extend(group)
            why = why or reason(error)
    return refused, why


@contextmanager
def _readied(group: list[Record], folder: Path) -> Iterator[list[Record]]:
    """Yields the group; a file to upload as a copy that cannot be exchanged while it is uploaded."""
    first = group[0]
    if not isinstance(first, Artifact):
        yield group
        return
    if not folder.is_absolute():
        raise ValueError(f"{first.path} belongs to a run whose folder is not known")
    with below.copied(folder, Path(first.path)) as copy:
        yield [Artifact(str(copy), first.folder)]


def _not_now(path: Path, error: Exception) -> TrackingError:
    return TrackingError(f"{path} cannot be stored: {reason(error)}; store it later")


def _without_stored(send: Sender, records: Sequence[Record]) -> list[Record]:
    """Returns the records without the points that the run has.

    The history of a metric is read once for all of them: read for each group, it made the cost of a file quadratic.
    """
    points = [record for record in records if isinstance(record, Point)]
    missing = iter(_attempted(lambda: send.missing(points)) if points else [])
    awaited = next(missing, None)
    kept: list[Record] = []
    for record in records:
        if not isinstance(record, Point):
            kept.append(record)
        elif record is awaited:
            kept.append(record)
            awaited = next(missing, None)
    return kept


def _insist(send: Sender, group: list[Record], *, unsure: bool) -> None:
    """Stores a group; what an attempt that raised has stored of it is not stored again by the next."""
    is_unsure = unsure

    def attempt() -> None:
        nonlocal is_unsure
        before = is_unsure
        is_unsure = True
        send(group, unsure=before)

    _attempted(attempt)


def _attempted(call: Callable[[], Value]) -> Value:
    """Returns what a call returns, which is made again where that may help."""
    for _ in range(_REPLAY_ATTEMPTS - 1):
        try:
            return call()
        except Exception as error:
            if not may_pass(error):
                raise
            time.sleep(_REPLAY_DELAY_S)
    return call()


def _lock_path(path: Path) -> Path:
    return path.parent / ".lock"

"""Records that could not be stored: a file of JSON lines, and how it is stored later, each record once."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from mlflow import MlflowClient

from runner.errors import TrackingError
from runner.host.lock import locked
from runner.host.outputs import append_whole
from runner.host.paths import project_root
from runner.host.secrets import TRACKING, reveal
from runner.tracking import places
from runner.tracking.location import default_uri, fingerprint, shown
from runner.tracking.mlflow_import import quiet
from runner.tracking.reason import reason
from runner.tracking.records import Record, from_json, to_json
from runner.tracking.send import Sender, groups, may_pass

_REJECTED = ".rejected.jsonl"
_REPLAY_ATTEMPTS = 3
_REPLAY_DELAY_S = 0.5


def write(path: Path, uri: str, run_id: str, records: Sequence[Record]) -> None:
    """Appends records to a file, and does not return before they are on disk.

    Args:
      path: the file; its head, written once, names the run and the store, without a password.
      uri: absolute tracking URI.
      run_id: the run they belong to.
      records: what could not be stored.

    Raises:
      OSError: the disk is full, or can't be written; the file is then as it was.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with locked(_lock_path(path)):
        _write(path, {"run_id": run_id, "uri": shown(uri), "store": fingerprint(uri)}, records)


def write_somewhere(root: Path, name: str, uri: str, run_id: str, records: Sequence[Record]) -> Path:
    """Writes records to the first of `places.folders` that takes them; see `write`.

    Args:
      root: the project's folder.
      name: of the file.
      uri: absolute tracking URI.
      run_id: the run they belong to.
      records: what could not be stored.

    Returns:
      The file.

    Raises:
      TrackingError: none of the folders can be written.
    """
    failures = []
    for place in places.folders(root):
        try:
            places.make(place, root)
            write(place / name, uri, run_id, records)
        except OSError as error:
            failures.append(f"{place}: {error.strerror or error}")
        else:
            return place / name
    raise TrackingError(f"no place can be written ({'; '.join(failures)})")


def _write(path: Path, head: dict[str, str], records: Sequence[Record]) -> None:
    held = path.read_bytes() if path.exists() else b""
    whole = held.rfind(b"\n") + 1
    if whole < len(held):  # a process died in the middle of its last line
        os.truncate(path, whole)
    lines = [] if whole else [json.dumps(head)]
    lines += [to_json(record) for record in records]
    append_whole(path, "".join(f"{line}\n" for line in lines).encode(), sync=True)


def replay(path: Path, uri: str | None = None) -> int:
    """Stores the records of a file and removes it; what the run has already is not stored again.

    Records that the store refuses for good move to `<run id>.rejected.jsonl`.

    Args:
      path: a file that `write` made.
      uri: tracking URI; null: the one that the file names, or the default one where that is the same store.

    Returns:
      How many records the file held.

    Raises:
      TrackingError: the store refuses or cannot be reached; the file stays.
      ValueError: the file is none that `write` made.
    """
    quiet()
    with locked(_lock_path(path)):
        if not path.exists():
            return 0  # another process was quicker
        head, records = _read(path)
        client = MlflowClient(tracking_uri=uri or _uri_of(head))
        refused = _store(client, head["run_id"], records, path)
        if refused and path.name.endswith(_REJECTED):
            raise TrackingError(f"{path}: {len(refused)} of {len(records)} records are refused again; the file stays")
        if refused:
            _write(path.with_suffix(_REJECTED), head, refused)
        path.unlink()
    return len(records)


def replay_all(root: Path, uri: str, warn: Callable[[str], None]) -> None:
    """Stores every file of a store that lies in `places.folders`; one that can't be stored stays, with a line.

    Args:
      root: the project's folder.
      uri: absolute tracking URI of the store.
      warn: shows one line to the user.
    """
    for path in places.files(root):
        if path.name.endswith(_REJECTED):
            continue
        try:
            if json.loads(_first_line(path))["store"] != fingerprint(uri):
                continue
            if count := replay(path, uri):
                warn(f"stored {count} records of run {path.stem} that an earlier run had to keep")
        except FileNotFoundError:
            continue  # another process stored it
        except (TrackingError, ValueError, KeyError, OSError) as error:
            warn(f"{path} is kept: {reason(error)}")


def _first_line(path: Path) -> str:
    with path.open(encoding="utf-8") as file:
        return file.readline()


def _read(path: Path) -> tuple[dict[str, str], list[Record]]:
    lines = path.read_bytes().split(b"\n")
    if len(lines) > 1 and lines[-1]:  # its writer died in the middle of this line
        lines = lines[:-1]
    try:
        head = json.loads(lines[0])
        records = [from_json(line.decode()) for line in lines[1:] if line]
        return {key: str(head[key]) for key in ("run_id", "uri", "store")}, records
    except (IndexError, KeyError, TypeError) as error:
        raise ValueError(f"{path} is no file of unsent records") from error


def _uri_of(head: dict[str, str]) -> str:
    default = default_uri(project_root())
    return default if fingerprint(default) == head["store"] else reveal(TRACKING, head["uri"])


def _store(client: MlflowClient, run_id: str, records: Sequence[Record], path: Path) -> list[Record]:
    """Stores records and returns those that are refused for good.

    Raises:
      TrackingError: the store cannot be reached.
    """
    send = Sender(client, run_id)
    refused: list[Record] = []
    for group in groups(records):
        try:
            _insist(send, group)
        except Exception as error:
            if may_pass(error):
                raise TrackingError(f"{path} cannot be stored: {reason(error)}; store it later") from error
            refused.extend(group)
    return refused


def _insist(send: Sender, group: list[Record]) -> None:
    for _ in range(_REPLAY_ATTEMPTS - 1):
        try:
            return send(group, unsure=True)
        except Exception as error:
            if not may_pass(error):
                raise
            time.sleep(_REPLAY_DELAY_S)
    return send(group, unsure=True)


def _lock_path(path: Path) -> Path:
    return path.parent / ".lock"

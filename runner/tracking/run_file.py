"""The file of a run's records in the run's folder; every record is in it before it is sent.

It has a line of JSON per record, below a head for each process that has written to it. A line `sent` says that the
store has every record above it. A record that is in it twice is sent twice, and stored once.
"""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from runner.cluster import process
from runner.host.folders import is_own
from runner.host.lock import lock_until_exit
from runner.host.paths import outputs_dir
from runner.tracking.location import fingerprint
from runner.tracking.records import Record, from_json, to_json

PATTERN = "tracking-*.jsonl"
_HEAD = "head"
_SENT = '{"kind": "sent"}'


def path_of(folder: Path, run_id: str) -> Path:
    """Returns the file of a run's records in the run's folder."""
    return folder / f"tracking-{run_id}.jsonl"


def run_id_of(file: Path) -> str:
    """Returns the run whose records a file has, by its name."""
    return file.stem.removeprefix("tracking-")


def sync_command(folder: Path) -> str:
    """Returns the command that sends what the runs of a folder could not send."""
    command = "python -m runner.runs sync"
    if not folder.is_relative_to(outputs_dir()):
        command += f" folder={shlex.quote(str(folder))}"
    return command


class RunFile:
    """The file that this process appends a run's records to; locked from the first record until `close`."""

    def __init__(self, folder: Path, run_id: str, uri: str) -> None:
        self.path = path_of(folder, run_id)
        self._head = {"kind": _HEAD, "run_id": run_id, "store": fingerprint(uri), **process.identity()}
        self._lock: int | None = None
        self._has_head = False

    def append(self, records: Sequence[Record], *, sync: bool = False) -> None:
        """Appends records; with `sync`, returns only when they are on the disk; raises HeldError or OSError.

        After an error the file may have a part of the records, so append all of them again.
        """
        lines = list(map(to_json, records))
        if not self._has_head:
            with suppress(FileExistsError):
                os.close(os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
            if self._lock is None:
                self._lock = _locked(self.path)
            lines = [json.dumps(self._head), *lines]
        _append(self.path, lines, sync=sync)
        self._has_head = True

    def close(self, *, sent: bool) -> None:
        """Unlocks the file, with the mark that says that the store has all of it if `sent`."""
        if sent and self._has_head:
            # Without the mark, all of it is sent again, and the store leaves out what it has.
            with suppress(OSError):
                _append(self.path, [_SENT])
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


def _append(path: Path, lines: Sequence[str], *, sync: bool = False) -> None:
    with path.open("a", encoding="utf-8") as file:
        # The last write, of this process or an earlier one, may have ended in the middle of a line.
        file.write("\n".join(["", *lines, ""]))
        if sync:
            file.flush()
            os.fsync(file.fileno())


# The head of a file's last process (the run's id, the fingerprint of its store, the identity of the process), and the
# records below the last mark, which the store may lack.
Unsent = tuple[dict[str, str], list[Record]]


def is_unsent(path: Path) -> bool:
    """Returns whether a file does not end with the mark; False if it can't be read."""
    try:
        return not path.read_text(encoding="utf-8", errors="replace").endswith(f"{_SENT}\n")
    except OSError:
        return False


@contextmanager
def opened(path: Path) -> Iterator[Unsent]:
    """Yields what a file has unsent, and marks all of it as sent unless the block raises.

    Raises:
      HeldError: the process that writes to it still runs.
      OSError: it can't be read, or another user can write to it.
      ValueError: it is not a file of a run's records.
    """
    lock = _locked(path)
    try:
        yield parsed(path)
        _append(path, [_SENT])
    finally:
        os.close(lock)


def parsed(path: Path) -> Unsent:
    """Returns what a file has unsent; raises ValueError if it is not a file of a run's records."""
    head: dict[str, str] = {}
    records: list[Record] = []
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        # A line that its writer did not end costs no other.
        with suppress(ValueError):
            content = json.loads(line)
            if content == json.loads(_SENT):
                records.clear()
            elif isinstance(content, dict) and content.get("kind") == _HEAD:
                head = {name: str(value) for name, value in content.items()}
            else:
                records.append(from_json(line))
    if not {"run_id", "store"} <= set(head) or path.name != path_of(path.parent, head["run_id"]).name:
        raise ValueError(f"{path} is not a file of a run's records")
    return head, records


def _locked(path: Path) -> int:
    lock = lock_until_exit(path)
    # It may be in a folder that others can write to, or somebody else's.
    if not is_own(path.lstat()):
        os.close(lock)
        raise PermissionError(f"{path} belongs to another user, or others can write to it")
    return lock

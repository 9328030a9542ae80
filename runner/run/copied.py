"""A copy of a run's folder in an object store, which is brought up to date while the run lasts.

The folder itself is local, because logs are appended to and libraries write files. Process 0 copies what has changed
every minute, and once more when the run ends, however it does. `run-folder.json` is written last each time: it names
the files of the copy, and says whether the run has ended.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from runner.errors import invalid
from runner.host import outputs
from runner.host.paths import outputs_dir
from runner.host.stores import client
from runner.host.stores.urls import ObjectPath
from runner.processes.team import current

KEY = "tracking.copy_to"
RECORD = "run-folder.json"

# Seconds between two updates. Each lists the local folder, and uploads the files that have changed as a whole.
EVERY_S = 60.0

# Seconds that the end of a run waits for a store that has failed before: after a SIGTERM, a scheduler may leave only
# half a minute until SIGKILL.
_SHORT_S = 10.0

# Of no version that a file has: such a file is copied again, or removed.
_UNKNOWN = (-1, -1)

# Bytes of the record, which names some hundred files at most.
_LARGEST_RECORD = 4 << 20


@contextmanager
def copied(folder: Path, url: str | None) -> Iterator[None]:
    """Keeps a copy of a run's folder in an object store for the block; the first process of a run does it.

    A store that fails later than at the start ends no run: there is a warning, and the next update tries again.

    Args:
      folder: of the run, with its first files.
      url: of the folder that gets the copies of all runs; None: there is no copy.

    Raises:
      ConfigError: the copy's folder has other objects.
      OSError: the store does not answer at the start.
    """
    if url is None or not current().is_first:
        yield
        return
    copy = _Copy(folder, target(folder, url))
    copy.begin()
    try:
        yield
    finally:
        copy.end()


def target(folder: Path, url: str) -> ObjectPath:
    """Returns where the copy of a run's folder is.

    It has the folder's own name there. Below the project's outputs, that is its relative path, because the jobs of all
    sweeps have the names 0, 1, 2.
    """
    name = folder.name
    with suppress(ValueError):
        name = folder.absolute().relative_to(outputs_dir()).as_posix()
    return ObjectPath.of(url) / name


class _Copy:
    """A copy of a folder.

    **Invariant.** The updating thread owns `_versions` from `begin` until it is over. `end` touches them only then.
    """

    def __init__(self, folder: Path, path: ObjectPath) -> None:
        self._folder = folder
        self._path = path
        # Name -> size in bytes and time of the last change, of what the copy has.
        self._versions: dict[str, tuple[int, int]] = {}
        # Names of local files that could not be read.
        self._unreadable: set[str] = set()
        # Of the last update; None: it succeeded.
        self._failure: OSError | None = None
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._keep_up, name="run-folder-copy", daemon=True)

    def begin(self) -> None:
        """Makes the copy and starts to update it; raises as `copied` does."""
        try:
            there = set(client.below(self._path))
            recorded = self._recorded() & there
            others = there - {RECORD, *recorded}
        except client.NoBucketError:
            raise invalid(KEY, self._path.store, problem="does not exist", fix="create the bucket") from None
        if others:
            raise invalid(
                KEY,
                self._path.parent,
                problem=f"{self._path} has objects that are not a copy of a run's folder, such as {min(others)}",
                fix="name a new or empty folder",
            )
        self._versions = dict.fromkeys(recorded, _UNKNOWN)
        self._update(has_ended=False)
        self._thread.start()

    def _recorded(self) -> set[str]:
        """Returns the names of the objects of an earlier copy, which an attempt of this run has made."""
        # Without a valid record, whatever is there is somebody else's.
        with suppress(FileNotFoundError, client.TooLargeError, ValueError, TypeError, KeyError):
            record = json.loads(client.read(self._path / RECORD, _LARGEST_RECORD))
            return {str(name) for name in record["files"]}
        return set()

    def _keep_up(self) -> None:
        while not self._is_over.wait(EVERY_S):
            try:
                self._update(has_ended=False)
                self._failure = None
            except OSError as error:
                if self._failure is None:
                    outputs.warn(f"could not copy the run's folder to {self._path}: {error}; training continues")
                self._failure = error

    def end(self) -> None:
        """Brings the copy up to date for the last time, unless the store has failed and still does not answer."""
        self._is_over.set()
        # An update that is on its way may be a large file, but not after one that failed.
        self._thread.join(None if self._failure is None else _SHORT_S)
        failure = self._failure
        if failure is None or (not self._thread.is_alive() and self._answers()):
            failure = self._last_failure()
        if failure is not None:
            outputs.warn(f"could not copy the run's folder to {self._path}: {failure}; it is in {self._folder}")

    def _answers(self) -> bool:
        """Returns whether the store answers within a short time."""
        has_answered = threading.Event()

        def ask() -> None:
            with suppress(OSError):
                client.size(self._path / RECORD)
                has_answered.set()

        # A request can't be ended, but be left behind.
        threading.Thread(target=ask, name="run-folder-copy-end", daemon=True).start()
        return has_answered.wait(_SHORT_S)

    def _last_failure(self) -> OSError | None:
        """Makes the last update, and returns why it failed; None: it did not."""
        try:
            self._update(has_ended=True)
        except OSError as error:
            return error
        return None

    def _update(self, *, has_ended: bool) -> None:
        """Copies the files that have changed, and then writes the record of all."""
        found = _files(self._folder)
        changed = [name for name, version in found.items() if self._versions.get(name) != version]
        if changed or has_ended:
            # Before the first file, so that an attempt that is killed leaves no object that no record names.
            self._write_record({*self._versions, *found}, has_ended=False)
        for name in changed:
            if self._is_uploaded(name):
                self._versions[name] = found[name]
        for name in set(self._versions) - set(found):
            client.remove(self._path / name)
            del self._versions[name]
        if changed or has_ended:
            self._write_record(set(self._versions), has_ended=has_ended)

    def _is_uploaded(self, name: str) -> bool:
        """Copies a file, and returns whether it could be read; raises StoreError."""
        try:
            client.upload(self._folder / name, self._path / name)
        except client.StoreError:
            raise
        except FileNotFoundError:
            # A file that the run removes meanwhile is gone with the next update.
            return False
        except OSError as error:
            if name not in self._unreadable:
                self._unreadable.add(name)
                outputs.warn(f"could not read {self._folder / name}: {error.strerror}; its copy is missing or old")
            # The record must name a part of the file that the upload may have left.
            if client.size(self._path / name) is not None:
                self._versions[name] = _UNKNOWN
            return False
        return True

    def _write_record(self, names: set[str], *, has_ended: bool) -> None:
        record = {"folder": str(self._folder), "ended": has_ended, "files": sorted(names)}
        client.write(self._path / RECORD, (json.dumps(record, indent=1) + "\n").encode())


def _files(folder: Path) -> dict[str, tuple[int, int]]:
    """Returns the regular files of a folder: relative path -> size in bytes and time of the last change in ns."""
    found: dict[str, tuple[int, int]] = {}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        try:
            if path.is_symlink() or not path.is_file():
                continue
            status = path.stat()
        except FileNotFoundError:
            continue
        except PermissionError:
            # In a folder that can be listed but not entered. It must not count as removed.
            found[name] = _UNKNOWN
            continue
        found[name] = (status.st_size, status.st_mtime_ns)
    return found

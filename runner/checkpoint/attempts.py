"""Attempts of a run: one per process (or group of processes) that has trained it, from its start to its end.

Process 0 of an attempt owns `attempt-<n>.json` in the folder of the run's checkpoints and rewrites it every few
seconds. That has two purposes: a process that was killed leaves a record of how far it came, and a process on another
machine, which can't look for this one, sees by the file whether it still runs.
"""

from __future__ import annotations

import errno
import json
import os
import re
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace

from runner.checkpoint import files
from runner.checkpoint.files import LARGEST_RECORD, DamagedError
from runner.errors import passing
from runner.host import outputs
from runner.host.stores import client
from runner.host.stores.urls import ObjectPath, Place
from runner.tracking import process

# Seconds between two writes. What an attempt that is killed has not recorded is at most this long.
BEAT_S = 5.0

# Seconds for which the file of a running attempt may stay unchanged: six missed writes. A network file system shows
# another machine's write after at most a few seconds. In a store it is a minute, so that one that is slow or rejects
# requests for a while ends no run.
SILENT_S = 30.0
STORE_SILENT_S = 60.0

# Between two looks at the file of an attempt on another machine.
_LOOK_S = 1.0

# Why an attempt ended that came to the end of the run.
FINISHED = "finished"

# A tag of a run that was restarted: its attempts, and why each ended.
TAG = "runner.attempts"

_FILE = re.compile(r"attempt-([1-9]\d{0,8})\.json", re.ASCII)


@dataclass(frozen=True)
class Attempt:
    """One attempt of a run.

    Attributes:
      number: from 1.
      host: name of the machine of its process 0.
      pid: id of that process there.
      seen: when the file was last written, in seconds since 1970.
      first: training steps done when it began.
      step: training steps done when the file was last written.
      mesh: axes and sizes of its mesh, such as `batch=4 model=2`.
      ended: why it ended, in words; empty: it runs, or was killed.
    """

    number: int
    host: str = ""
    pid: str = ""
    seen: float = 0.0
    first: int = 0
    step: int = 0
    mesh: str = ""
    ended: str = ""


def path_of(folder: Place, number: int) -> Place:
    """Returns the file of an attempt in the folder of a run's checkpoints."""
    return folder / f"attempt-{number}.json"


def names(folder: Place) -> list[str]:
    """Returns the names of the files of a run's attempts, in order."""
    return [path_of(folder, number).name for number in _numbers(folder)]


def _numbers(folder: Place) -> list[int]:
    """Returns the numbers of a run's attempts in order; empty if the folder can't be read."""
    with suppress(OSError):
        return sorted(int(match[1]) for match in map(_FILE.fullmatch, files.names(folder)) if match)
    return []


def read(folder: Place) -> list[Attempt]:
    """Returns a run's attempts in order; one whose file is damaged is left out."""
    attempts: list[Attempt] = []
    for name in names(folder):
        with suppress(DamagedError):
            attempts.append(files.as_record(Attempt, files.read_json(folder / name, LARGEST_RECORD), folder / name))
    return attempts


def causes(attempts: Sequence[Attempt]) -> str:
    """Returns the attempts and why each ended, for a tag of the run; the last one is at the end of its training."""
    parts: list[str] = []
    for attempt in attempts:
        ended = attempt.ended or (FINISHED if attempt is attempts[-1] else "killed, or lost with its machine")
        on_mesh = f", on {attempt.mesh}" if attempt.mesh != attempts[0].mesh else ""
        parts.append(f"{attempt.number}: steps {attempt.first:,} to {attempt.step:,}{on_mesh}, {ended}")
    return "; ".join(parts)


def is_silent(folder: Place, say: Callable[[str], object], sleep: Callable[[float], None] = time.sleep) -> bool:
    """Returns whether the last attempt of a run no longer writes its file, which this waits for after a line to `say`.

    Only the content of the file is compared, never the clocks of two machines.
    """
    begun = names(folder)
    if not begun:
        return False
    path = folder / begun[-1]
    before = _content(path)
    seconds = STORE_SILENT_S if isinstance(folder, ObjectPath) else SILENT_S
    say(f"waiting {seconds:.0f} s to see whether an earlier attempt still runs: {path}")
    waited = 0.0
    while waited < seconds:
        sleep(_LOOK_S)
        waited += _LOOK_S
        if _content(path) != before or names(folder) != begun:
            return False
    return True


def _content(path: Place) -> bytes:
    # Opened each time: a network file system checks for another machine's write when a file is opened.
    with suppress(OSError):
        return client.read(path) if isinstance(path, ObjectPath) else path.read_bytes()
    return b""


class Journal:
    """The record of this process's attempt, which a thread writes every few seconds; the training never waits."""

    def __init__(self, folder: Place, number: int, first: int, lost: Callable[[str], object], mesh: str = "") -> None:
        """Creates the attempt's file, after so many training steps; raises FileExistsError if another process has.

        `lost` is called by the thread with a line if another process has begun a later attempt of the run.
        """
        identity = process.identity()
        self._folder = folder
        self._lost = lost
        self._begun = Attempt(number, identity[process.HOST], identity[process.PID], first=first, mesh=mesh)
        self._step = first
        self._ended = ""
        self._has_warned = False
        self._over = threading.Event()
        _create(path_of(folder, number), _as_text(self._now()))
        self._thread = threading.Thread(target=self._beat, name="attempt-journal", daemon=True)
        self._thread.start()

    def _now(self) -> Attempt:
        return replace(self._begun, seen=time.time(), step=self._step, ended=self._ended)

    def attempts(self) -> list[Attempt]:
        """Returns the run's attempts up to now, this one last; those of another process are read."""
        return [*(attempt for attempt in read(self._folder) if attempt.number < self._begun.number), self._now()]

    def update(self, step: int) -> None:
        """Takes the number of training steps done, which is written with the next beat."""
        self._step = step

    def end(self, why: str) -> None:
        """Records the end of the attempt, and why it ended; the first reason counts."""
        self._over.set()
        # No beat may replace the file after the last write below.
        self._thread.join()
        if not self._ended:
            self._ended = why
            self._write()

    def _beat(self) -> None:
        while not self._over.wait(BEAT_S):
            later = path_of(self._folder, self._begun.number + 1)
            # By its name, because a store may list a new object late.
            with suppress(OSError):
                if files.exists(later):
                    self._lost(f"another process has begun {later.name} of this run in {self._folder}; this one ends")
                    return
            self._write()

    def _write(self) -> None:
        """Replaces the file; not synced, because a power cut may cost the last few seconds of this record."""
        path = path_of(self._folder, self._begun.number)
        try:
            _replace(path, _as_text(self._now()))
        except OSError as error:
            # The next beat tries again: a file that stays unchanged shows other machines that this process is gone.
            # Checkpoints report a full disk themselves.
            if not self._has_warned:
                self._has_warned = True
                outputs.warn(f"could not record the attempt in {path}: {error}")


def _create(path: Place, text: str) -> None:
    """Writes a new file: of two processes only one begins an attempt; raises FileExistsError."""
    if isinstance(path, ObjectPath):
        try:
            client.create(path, text.encode())
        except client.ChangedError:
            raise FileExistsError(errno.EEXIST, "exists", str(path)) from None
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    # Exclusive, also on network file systems.
    with path.open("x", encoding="utf-8") as file:
        file.write(text)


def _replace(path: Place, text: str) -> None:
    if isinstance(path, ObjectPath):
        client.write(path, text.encode())
        return
    temporary = path.with_name(f".unfinished-{path.name}")
    temporary.write_text(text, encoding="utf-8")
    temporary.replace(path)


def _as_text(attempt: Attempt) -> str:
    return json.dumps(asdict(attempt)) + "\n"


def _leave(why: str) -> None:
    """Ends this process at once: it was suspended for so long that another one has taken its run.

    To save or to record anything would overwrite what the other process has written.
    """
    outputs.warn(why)
    os._exit(1)


def begin(folder: Place, first: int, earlier_end: str = "", mesh: str = "") -> Journal:
    """Begins the next attempt of a run after `first` training steps; process 0 calls this.

    `earlier_end` is why the attempt before this one ended, if that one could not record it.

    Raises:
      PassingError: another process has begun one at the same time.
    """
    number = max(_numbers(folder), default=0) + 1
    earlier = read(folder)
    if earlier_end and earlier and not earlier[-1].ended:
        with suppress(OSError):
            _replace(path_of(folder, earlier[-1].number), _as_text(replace(earlier[-1], ended=earlier_end)))
    try:
        return Journal(folder, number, first, _leave, mesh)
    except FileExistsError:
        problem = f"another process has begun the run at the same time ({folder})"
        raise passing("name", folder.name, problem=problem, fix="wait for it or stop it") from None

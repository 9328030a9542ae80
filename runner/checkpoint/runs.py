"""Runs that left checkpoints, found by id without a tracking server: `outputs/checkpoints/<run>/`.

`run.json` in a run's folder is its record: its command line, its process and its attempts. An attempt is one process,
or a group of processes, that has trained the run, from its start to its end. While it runs, its process 0 writes the
record again every few seconds, see `attempts.Journal`. That has two purposes: a process that was killed leaves a
record of how far it came, and a process on another machine, which can't look for this one, sees whether it still runs.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from runner.checkpoint import files, manifest, storage
from runner.checkpoint.files import LARGEST_RECORD, DamagedError
from runner.checkpoint.places import ObjectPath, Place, place
from runner.checkpoint.reading import Checkpoint
from runner.cluster import process
from runner.errors import PassingError, invalid, passing
from runner.host import outputs
from runner.host.lock import HeldError
from runner.host.lock import locked as file_locked

RECORD = "run.json"
LOCK = "run.lock"
# The entry with the run's name in the tracking store.
RUN_NAME = "run_name"
# The record among what a checkpoint says about its run.
IN_CHECKPOINTS = "record"

# The entry of a run that was resumed from before its last checkpoint.
WENT_BACK = "went_back"

# Seconds for which the record of a running attempt may stay unchanged: six missed writes. A network file system shows
# another machine's write after at most a few seconds. In a store it is a minute, so that one that is slow or rejects
# requests for a while ends no run.
SILENT_S = 30.0
STORE_SILENT_S = 60.0

# Between two looks at the record of another machine's run.
_LOOK_S = 1.0

# Runs that are read at once: a store answers in tens of milliseconds, and any number of requests at once.
_AT_ONCE = 16

# How many of the newest runs a message lists: enough to find the one that was meant, on one line.
_LISTED = 3


@dataclass(frozen=True)
class SavedRun:
    """A run: the folder of its checkpoints, and the content of its `run.json`, see `_Record`."""

    folder: Place
    record: Mapping[str, Any]

    @property
    def id(self) -> str:
        """The run's id in the tracking store, or the name of its folder if it was not tracked."""
        return str(self.record["run"])

    @property
    def tracking_id(self) -> str | None:
        """The run's id in the tracking store; None if it was not tracked."""
        return self.id if self.record["tracked"] else None


@dataclass(frozen=True)
class _Attempt:
    """The steps done when an attempt began and when it last wrote, its mesh in words, and why it ended, if it has."""

    first: int
    step: int
    mesh: str
    ended: str


@dataclass(frozen=True)
class _Record:
    """The entries of a record, with their types; `seen` is when it was last written, in seconds since 1970."""

    run: str
    tracked: bool
    overrides: list[str]
    process: dict[str, str]
    started: float
    seen: float = 0.0
    attempts: list[_Attempt] = field(default_factory=list)
    ended: bool = False
    finished: bool = False
    went_back: bool = False
    origin: str = ""
    name: str = ""
    run_name: str = ""


def write_record(folder: Place, record: Mapping[str, object]) -> None:
    """Writes the record of a run with its SHA-256."""
    files.write(folder / RECORD, (json.dumps(files.sealed(record), indent=1) + "\n").encode())


def listed(folder: Place) -> list[SavedRun]:
    """Returns the runs that left checkpoints; prints a warning for each whose record is damaged."""

    def found(own_folder: Place) -> SavedRun | None:
        try:
            if storage.steps(own_folder):
                return read(own_folder)
        except DamagedError as error:
            outputs.warn(f"skipping {own_folder}: {error}")
        return None

    folders: list[Place] = [folder / name for name in files.names(folder)]
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        return [run for run in pool.map(found, folders) if run is not None]


def find(key: str, reference: str, folder: Place) -> tuple[SavedRun, int | None]:
    """Finds a run that left checkpoints below a folder, and the step if one is named; raises ConfigError.

    The reference is `latest`, a name, a run id or the beginning of one, or a folder; `@<step>` after it names a
    checkpoint, and `@best` the best one. `key` is the one with this value, for errors.
    """
    name = reference
    step = ""
    # The path of a folder may have an `@` too.
    if "@" in reference and not files.exists(place(reference) / RECORD):
        name, _, step = reference.rpartition("@")
    run = _named(key, reference, name, folder)
    if not step:
        return run, None
    steps = storage.steps(run.folder)
    if step in map(str, steps):
        return run, int(step)
    # Only now: a checkpoint that is named by its step opens whatever the record of the best one is.
    best = storage.read_best(run.folder)
    if step == "best" and best is not None:
        return run, best.step
    problem = f"the checkpoints of that run are {', '.join(map(str, steps))}"
    raise invalid(key, reference, problem=problem, fix=f"set {key}={run.id}@{steps[-1]}")


def _named(key: str, reference: str, name: str, folder: Place) -> SavedRun:
    """Returns the run that a name fits: a folder, `latest`, a name or id, or the beginning of an id, in this order."""
    if name and storage.steps(place(name)):
        return read(place(name))
    runs = sorted(listed(folder), key=lambda run: -float(run.record["started"]))
    exact = [run for run in runs if name and name in (run.id, run.record.get("name"), run.record.get(RUN_NAME))]
    matches = exact or [run for run in runs if name and run.id.startswith(name)]
    if name == "latest":
        matches = runs[:1]
    if len(matches) == 1:
        return matches[0]
    if not runs:
        problem = f"no run left a checkpoint in {folder}"
        raise invalid(key, reference, problem=problem, fix="start one: python -m runner")
    newest: list[str] = []
    for run in (matches or runs)[:_LISTED]:
        newest.append(f"{run.id} ({run.record.get(RUN_NAME, '')})".removesuffix(" ()"))
    the_newest = f"the newest are {', '.join(newest)}"
    if matches:
        problem = f"several runs have this name or begin with it; {the_newest}"
        raise invalid(key, reference, problem=problem, fix=f"set {key}={matches[0].id}")
    raise invalid(key, reference, problem=f"no such run in {folder}; {the_newest}", fix=f"set {key}=latest")


def begun(folder: Place) -> SavedRun | None:
    """Returns the run of a folder, which may not have saved yet; None if the folder has no record of one."""
    if not storage.steps(folder) and not files.exists(folder / RECORD):
        return None
    return read(folder)


def read(folder: Place) -> SavedRun:
    """Returns the run of a folder; raises DamagedError if it has no valid record, and no checkpoint has a copy."""
    path = folder / RECORD
    try:
        content = files.read_json(path, LARGEST_RECORD)
    except DamagedError:
        record = _record_in_checkpoints(folder)
        if not record:
            raise
    else:
        record = files.unsealed(content, path)
    checked = files.as_record(_Record, record, path)
    if not re.fullmatch(r"\w[\w.-]*", checked.run):
        raise DamagedError(f"{path} is invalid: run must be a name and no path, because folders are named after it")
    return SavedRun(folder.absolute(), record)


def _record_in_checkpoints(folder: Place) -> dict[str, Any]:
    """Returns the record that the newest checkpoint has of its run; empty if none has one."""
    for step in reversed(storage.steps(folder)):
        with suppress(DamagedError):
            record = manifest.read(storage.place(folder, step)).about.get(IN_CHECKPOINTS)
            if isinstance(record, dict):
                return record
    return {}


def open_checkpoint(key: str, run: SavedRun, step: int | None) -> Checkpoint:
    """Opens a run's checkpoint, by default the last, or for `run` and early stopping the best; every byte is verified.

    If it is damaged, the ConfigError suggests the one before it.
    """
    if step is None:
        step = _default_step(key, run)
    folder = storage.place(run.folder, step)
    try:
        checkpoint = Checkpoint(folder)
        if checkpoint.about["run"] != run.id:
            raise DamagedError(f"{folder} is of run {checkpoint.about['run']}")
        checkpoint.history()
        return checkpoint
    except DamagedError as error:
        earlier = [other for other in storage.steps(run.folder) if other < step]
        fix = "there is none before it, so start a new run"
        if earlier:
            fix = f"set {key}={run.id}@{earlier[-1]}, the one before it"
        raise invalid(key, run.id, problem=f"its checkpoint of step {step} is damaged ({error})", fix=fix) from error


def _default_step(key: str, run: SavedRun) -> int:
    """Returns the step that is meant if none is named: training continues from the last."""
    last = storage.steps(run.folder)[-1]
    best = storage.read_best(run.folder)
    if key == "run" and best is not None:
        # A run with early stopping ended with its best weights, so these are what is evaluated and exported.
        with suppress(DamagedError, KeyError, TypeError):
            trainer = manifest.read(storage.place(run.folder, last)).config["trainer"]
            if trainer["early_stopping"]["metric"] is not None:
                return best.step
    return last


@contextmanager
def locked(key: str, run: SavedRun) -> Iterator[None]:
    """Keeps other processes from continuing a run until the block ends, or the process in any way.

    A PassingError says that another process has the run, or that its folder is read-only.
    """
    if isinstance(run.folder, ObjectPath):
        # A store has no locks: of several processes one claims the next attempt, see `attempts.begin`.
        yield
        return
    with ExitStack() as stack:
        try:
            stack.enter_context(file_locked(run.folder / LOCK, wait=False))
        except HeldError:
            problem = f"the run is in use by another process (`fuser {run.folder / LOCK}` names it)"
            raise passing(key, run.id, problem=problem, fix="wait for it or stop it") from None
        except OSError as error:
            problem = f"its folder {run.folder} can't be written ({error.strerror})"
            raise passing(key, run.id, problem=problem, fix="make it writable, or name a folder that is") from error
        yield


def ended(key: str, run: SavedRun, sleep: Callable[[float], object] = time.sleep) -> SavedRun:
    """Returns a run whose process has ended, as it left it; raises PassingError if the process may still run.

    A process of another machine can't be looked for, and the lock may not reach it, but its writes do: it has ended if
    the record stays unchanged for a while. Only the contents are compared, never the clocks of two machines.
    """
    other = run.record["process"]
    if other == process.identity() or run.record.get("ended") or process.is_gone(other):
        return run
    seconds = STORE_SILENT_S if isinstance(run.folder, ObjectPath) else SILENT_S
    waiting = f"waiting {seconds:.0f} s to see whether an earlier attempt still runs"
    print(f"{waiting}: {run.folder / RECORD}", flush=True)
    waited = 0.0
    now = run
    while now.record == run.record:
        if waited >= seconds:
            return run
        sleep(_LOOK_S)
        waited += _LOOK_S
        # Opened each time: a network file system checks for another machine's write when a file is opened.
        now = read(run.folder)
    if now.record.get("ended"):
        return now
    problem = f"process {other.get(process.PID)} on {other.get(process.HOST)} is still running it"
    raise PassingError(f"{key}={run.id}: {problem}; wait for it or stop it")

"""Runs that left checkpoints, found by id without a tracking server: `outputs/checkpoints/<run>/`."""

from __future__ import annotations

import hashlib
import json
import math
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from runner.checkpoint import (
    attempts,
    files,
    index,
    storage,
)
from runner.checkpoint.files import (
    LARGEST_RECORD,
    DamagedError,
    read_json,
    write_json,
)
from runner.checkpoint.index import BestRecord
from runner.checkpoint.metric_history import check_arrays
from runner.checkpoint.reading import (
    Checkpoint,
    read_manifest,
)
from runner.checkpoint.typed import (
    MisfitError,
    read,
)
from runner.cluster import slurm
from runner.errors import ConfigError, PassingError, invalid, passing
from runner.host.lock import HeldError, locked_at_once
from runner.host.stores.urls import ObjectPath, Place, place
from runner.tracking import process

RECORD = "run.json"
LOCK = "run.lock"
# The record among what a checkpoint says about its run.
IN_CHECKPOINTS = "record"

# The entry of a run that was resumed from before its last checkpoint.
WENT_BACK = "went_back"

# Runs of an object store that are read at once.
_AT_ONCE = 16

# How many of the newest runs a message lists: enough to find the one that was meant, on one line.
_LISTED = 3


@dataclass(frozen=True)
class SavedRun:
    """A run and its checkpoints.

    Attributes:
      folder: with one folder per checkpoint.
      record: the content of `run.json`: run id, overrides, process, start time, and the Slurm job.
    """

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


def register(
    folder: Place,
    run: str,
    *,
    tracked: bool,
    overrides: Sequence[str],
    name: str | None = None,
    job: slurm.Job | None = None,
    lasting: Mapping[str, Any] | None = None,
) -> SavedRun:
    """Records a run that will save, and the process that it runs in.

    Args:
      folder: parent of the runs' folders.
      run: id of the run.
      tracked: whether the id is a tracking store's.
      overrides: the command line, without `resume`.
      name: the name of the run's own folder; None: the id. A folder that was copied may have another name.
      job: Slurm's, of this process; None: there is none.
      lasting: entries that stay when the run is resumed: `origin`, the run and step that it branched from, `kept`, and
        `name`, the config's.

    Raises:
      OSError: the disk is full or read-only.
    """
    own_folder = folder / (name or run)
    files.make_folder(own_folder)
    record: dict[str, Any] = {
        "run": run,
        "tracked": tracked,
        "overrides": list(overrides),
        "process": process.identity(),
        "started": time.time(),
    }
    if job is not None:
        record["job"] = job.note()
    record |= lasting or {}
    write_record(own_folder, record)
    return SavedRun(own_folder, record)


def write_record(folder: Place, record: Mapping[str, Any]) -> None:
    """Writes the record of a run with its SHA-256."""
    write_json(folder / RECORD, {**record, "sha256": _digest(record)})


def _digest(record: Mapping[str, Any]) -> str:
    """Returns a digest of a record, without the entries that a user may edit to end a run by hand."""
    covered = dict(record)
    for key in ("ended", "finished", "sha256"):
        covered.pop(key, None)
    return hashlib.sha256(json.dumps(covered, sort_keys=True).encode()).hexdigest()


def free_name(folder: Place, run: str) -> str:
    """Returns the folder name of a run that is not tracked: its id, numbered if another run has that folder."""
    name = run
    count = 1
    while _is_of_a_run(folder / name):
        count += 1
        name = f"{run}-{count}"
    return name


def _is_of_a_run(folder: Place) -> bool:
    """Returns whether a run has begun in a folder, which may have died before its first checkpoint."""
    return bool(storage.steps(folder)) or files.exists(folder / RECORD) or bool(attempts.names(folder))


def listed(folder: Place) -> tuple[list[SavedRun], dict[Place, DamagedError]]:
    """Returns the runs that left checkpoints.

    Args:
      folder: parent of the runs' folders.

    Returns:
      The runs, and the folder of each run whose record is damaged, with the reason.
    """
    runs: list[SavedRun] = []
    damaged: dict[Place, DamagedError] = {}
    for own_folder, run in _read_all(_recorded_folders(folder)):
        if isinstance(run, DamagedError):
            damaged[own_folder] = run
        elif run is not None:
            runs.append(run)
    return runs, damaged


def _read_all(folders: Sequence[Place]) -> list[tuple[Place, SavedRun | DamagedError | None]]:
    """Returns each folder with its run, the reason why that is damaged, or None if it has no checkpoint."""

    def read(folder: Place) -> SavedRun | DamagedError | None:
        try:
            return _read(folder)
        except DamagedError as error:
            return error

    if not any(isinstance(folder, ObjectPath) for folder in folders):
        return [(folder, read(folder)) for folder in folders]
    # A store answers in tens of milliseconds, and any number of requests at once.
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        return list(zip(folders, pool.map(read, folders), strict=True))


def _recorded_folders(folder: Place) -> list[Place]:
    """Returns the folders of the runs that have a record; on a disk also of those that have lost it."""
    if not isinstance(folder, ObjectPath):
        return list({path.parent for pattern in (RECORD, "step-*") for path in folder.glob(f"*/{pattern}")})
    folders: list[Place] = [folder / name for name in files.names(folder)]
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        have_record = pool.map(lambda own_folder: files.exists(own_folder / RECORD), folders)
        return [own_folder for own_folder, has_record in zip(folders, have_record, strict=True) if has_record]


def find(key: str, reference: str, folder: Place) -> tuple[SavedRun, int | None]:
    """Finds a run that left checkpoints.

    Args:
      key: `resume`, `branch` or `run`, for errors.
      reference: `latest`, a name, a run id or the beginning of one, or a folder; `@<step>` after it names a
        checkpoint, and `@best` the best one.
      folder: parent of the runs' folders.

    Returns:
      The run, and the step if one is named.

    Raises:
      ConfigError: there is no such run or checkpoint, or its record is damaged.
    """
    name, step = _split(reference)
    runs, damaged = listed(folder)
    matches = _matching(key, name, runs, damaged)
    if len(matches) != 1 or not name:
        problem = _not_found(runs, folder, is_ambiguous=len(matches) > 1)
        fix = f"set {key}=latest" if runs else "start one: python -m runner"
        raise invalid(key, reference, problem=problem, fix=fix)
    run = matches[0]
    if not step:
        return run, None
    return run, _step(key, reference, run, step)


def _split(reference: str) -> tuple[str, str]:
    """Returns the run and the checkpoint that a reference names; the path of a folder may have an `@` too."""
    if "@" not in reference or files.exists(place(reference) / RECORD):
        return reference, ""
    name, _, step = reference.rpartition("@")
    return name, step


def begun(key: str, folder: Place) -> SavedRun | None:
    """Returns the run of a folder, which may not have saved yet; None if the folder has no record of one.

    Args:
      key: `name`, for errors.
      folder: of the run's checkpoints.

    Raises:
      ConfigError: the record is damaged.
    """
    if not storage.steps(folder) and not files.exists(folder / RECORD):
        return None
    try:
        return _recorded(folder)
    except DamagedError as error:
        problem = f"the record of that run is damaged ({error})"
        raise invalid(key, folder.name, problem=problem, fix="choose another name") from error


def _matching(
    key: str, name: str, runs: Sequence[SavedRun], damaged: Mapping[Place, DamagedError]
) -> Sequence[SavedRun]:
    """Returns the runs that a name fits: a folder, `latest`, a name or id, or the beginning of ids, in this order."""
    if name and _is_of_a_run(place(name)):
        try:
            run = _read(place(name))
        except DamagedError as error:
            raise _damaged_record(key, name, error) from error
        if run is not None:
            return [run]
    if name == "latest":
        newest = sorted(runs, key=lambda run: float(run.record["started"]))[-1:]
        # A damaged record may be of the latest run. The time of the file is all that is known.
        for folder, reason in damaged.items():
            if not newest or _written_at(folder) > newest[0].record["started"]:
                raise _damaged_record(key, name, reason) from reason
        return newest
    exact = [run for run in runs if name and name in (run.id, run.record.get("name"))]
    if exact:
        return exact
    for folder, reason in damaged.items():
        if name and folder.name.startswith(name):
            raise _damaged_record(key, name, reason) from reason
    return [run for run in runs if run.id.startswith(name)]


def _written_at(folder: Place) -> float:
    """Returns when a folder's record was written, in seconds since 1970; that of a store is taken for a new one."""
    if isinstance(folder, ObjectPath):
        return time.time()
    record = folder / RECORD
    return (record if record.exists() else folder).lstat().st_mtime


def _damaged_record(key: str, name: str, error: DamagedError) -> ConfigError:
    return invalid(key, name, problem=f"the record of that run is damaged ({error})", fix="name another run by its id")


def _step(key: str, reference: str, run: SavedRun, name: str) -> int:
    """Returns the step that the part after `@` names."""
    steps = storage.steps(run.folder)
    if name in map(str, steps):
        return int(name)
    # Only now: a checkpoint that is named by its step opens whatever the record of the best one is.
    best = _best(key, run)
    if name == "best" and best is not None:
        return int(best["step"])
    names = ", ".join(map(str, steps))
    if best:
        names += f", and the best is {best['step']}"
    raise invalid(
        key, reference, problem=f"the checkpoints of that run are {names}", fix=f"set {key}={run.id}@{steps[-1]}"
    )


def _read(folder: Place) -> SavedRun | None:
    """Returns the run of a folder; None if it has no checkpoint.

    Raises:
      DamagedError: the folder has checkpoints, and their record is missing, corrupted or invalid.
    """
    if not storage.steps(folder):
        return None
    return _recorded(folder)


def _recorded(folder: Place) -> SavedRun:
    """Returns the run of a folder; raises DamagedError."""
    path = folder / RECORD
    try:
        record = read_json(path, LARGEST_RECORD)
    except DamagedError:
        record = _record_in_checkpoints(folder)
        if not record:
            raise
    if record.pop("sha256", None) != _digest(record):
        raise DamagedError(f"{path} is corrupted (SHA-256 mismatch)")
    try:
        _check(record)
    except MisfitError as error:
        raise DamagedError(f"{path} is invalid: {error}") from error
    return SavedRun(folder.absolute(), record)


def _record_in_checkpoints(folder: Place) -> dict[str, Any]:
    """Returns the record that the newest checkpoint has of its run; empty if none has one."""
    for step in reversed(storage.steps(folder)):
        with suppress(DamagedError):
            record = read_manifest(storage.place(folder, step)).about.get(IN_CHECKPOINTS)
            if isinstance(record, dict):
                # With its digest, as the file has it: the checkpoint's own digest covers it.
                return {**record, "sha256": _digest(record)}
    return {}


@dataclass(frozen=True)
class _Record:
    """The entries of a record, with their types."""

    run: str
    tracked: bool
    overrides: list[str]
    process: dict[str, str]
    started: float
    ended: bool = False
    finished: bool = False
    kept: bool = False
    went_back: bool = False
    origin: str = ""
    name: str = ""
    job: slurm.Job | None = None


def _check(record: dict[str, Any]) -> None:
    """Checks the entries of a record; raises MisfitError."""
    checked = read(_Record, record, "it")
    if not re.fullmatch(r"\w[\w.-]*", checked.run):
        raise MisfitError("run must be a name and no path, because folders are named after it")
    if not math.isfinite(checked.started):
        raise MisfitError("started must be finite")


def _not_found(runs: Sequence[SavedRun], folder: Place, *, is_ambiguous: bool) -> str:
    if not runs:
        return f"no run left a checkpoint in {folder}"
    newest = sorted(runs, key=lambda run: -float(run.record["started"]))[:_LISTED]
    names = ", ".join(run.id for run in newest)
    what = f"no such run in {folder}"
    if is_ambiguous:
        what = "several runs begin with this"
    return f"{what}; the newest are {names}"


def _best(key: str, run: SavedRun) -> BestRecord | None:
    """Returns the record of a run's best checkpoint; None if there is none.

    Raises:
      ConfigError: the record is damaged.
    """
    try:
        return index.read_best(run.folder)
    except DamagedError as error:
        problem = f"the record of its best checkpoint is damaged ({error})"
        fix = f"delete {index.BEST_FILE} in that folder to continue without a best checkpoint"
        raise invalid(key, run.id, problem=problem, fix=fix) from error


def open_checkpoint(key: str, run: SavedRun, step: int | None) -> Checkpoint:
    """Opens a run's checkpoint; every byte of it is verified.

    Args:
      key: `resume`, `branch` or `run`, for errors.
      run: the run.
      step: of the checkpoint; None: the last, or, for `run` and a run with early stopping, the
        best.

    Raises:
      ConfigError: the checkpoint is damaged, in which case the one before it is suggested, or of a newer format.
    """
    if step is None:
        step = _default_step(key, run)
    try:
        checkpoint = Checkpoint(storage.place(run.folder, step))
        check_run(checkpoint, run)
        return checkpoint
    except DamagedError as error:
        earlier: list[int] = []
        for other in storage.steps(run.folder):
            if other < step and storage.is_checkpoint(storage.place(run.folder, other)):
                earlier.append(other)
        if earlier:
            fix = f"set {key}={run.id}@{earlier[-1]}, the one before it"
        else:
            fix = "there is none before it, so start a new run"
        raise invalid(key, run.id, problem=f"its checkpoint of step {step} is damaged ({error})", fix=fix) from error


def check_run(checkpoint: Checkpoint, run: SavedRun) -> None:
    """Checks that a checkpoint belongs to this run, and that a run can continue from its metrics.

    Raises:
      DamagedError: it does not, or can't.
    """
    if checkpoint.about["run"] != run.id:
        raise DamagedError(f"{checkpoint.folder} is of run {checkpoint.about['run']}")
    try:
        check_arrays(checkpoint.step, checkpoint.history())
    except ValueError as error:
        raise DamagedError(f"{checkpoint.folder} is invalid: {error}") from error


def _default_step(key: str, run: SavedRun) -> int:
    """Returns the step that is meant if none is named: training continues from the last.

    Raises:
      ConfigError: the record of the best checkpoint is damaged.
    """
    steps = storage.steps(run.folder)
    last = steps[-1]
    best = _best(key, run)
    if key != "run" or best is None or best["step"] not in steps:
        return last
    # A run with early stopping ended with its best weights, so these are what is evaluated and exported.
    try:
        trainer = read_manifest(storage.place(run.folder, last)).about["config"]["trainer"]
        has_early_stopping = trainer["early_stopping"]["metric"] is not None
    except (DamagedError, KeyError, TypeError):
        return last
    if has_early_stopping:
        return int(best["step"])
    return last


@contextmanager
def locked(key: str, run: SavedRun) -> Iterator[None]:
    """Keeps other processes from continuing a run until the block ends, or the process in any way.

    Args:
      key: `resume`, for errors.
      run: the run.

    Raises:
      PassingError: another process has the run, or its folder is read-only.
    """
    if isinstance(run.folder, ObjectPath):
        # A store has no locks: of several processes one begins the next attempt, see `attempts.begin`.
        yield
        return
    with ExitStack() as stack:
        try:
            stack.enter_context(locked_at_once(run.folder / LOCK))
        except HeldError as error:
            problem = f"the run is in use by process {error.holder} ({run.folder})"
            raise passing(key, run.id, problem=problem, fix="wait for it or stop it") from None
        except OSError as error:
            problem = f"its folder {run.folder} can't be written ({error.strerror})"
            fix = "make it writable, or name a folder that is"
            raise passing(key, run.id, problem=problem, fix=fix) from error
        yield


def print_line(line: str) -> None:
    """Prints a line at once."""
    print(line, flush=True)


def check_not_running(key: str, run: SavedRun) -> None:
    """Rejects a run whose process still exists.

    The lock tells the same of this machine's processes. On a network file system it may not reach other machines.

    Raises:
      PassingError: the process exists, or it is another machine's and may exist.
    """
    other = run.record["process"]
    if other == process.identity() or run.record.get("ended") or process.is_gone(other):
        return
    # Slurm starts a job again only when all processes of its earlier start are gone.
    job = slurm.job()
    if job is not None and job.has_ended(run.record.get("job")):
        return
    # Who restarts a run in a store can't edit its record, as the error below asks.
    if isinstance(run.folder, ObjectPath) and attempts.is_silent(run.folder, print_line):
        return
    raise PassingError(
        f"{key}={run.id}: process {other.get(process.PID)} on {other.get(process.HOST)} is still running it, or "
        f'can\'t be seen from here; stop it, or if it has ended, write "ended": true into {run.folder / RECORD}'
    )


def end(run: SavedRun, *, finished: bool) -> None:
    """Records that the run's process no longer uses it.

    Args:
      run: the run.
      finished: whether the run came to its end and its results are recorded.

    Raises:
      OSError: the disk is full or read-only.
    """
    write_record(run.folder, {**run.record, "ended": True, "finished": finished})

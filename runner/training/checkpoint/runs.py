"""Runs that left checkpoints, found by id without a tracking server: `outputs/checkpoints/<run>/`."""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from runner.errors import ConfigError, invalid
from runner.host.lock import HeldError, locked_at_once
from runner.model import gpt_options
from runner.optim.adam import adam_learning_rate
from runner.processes import requeue
from runner.tracking import process
from runner.training.checkpoint import best as best_record
from runner.training.checkpoint import lineage, signature, storage
from runner.training.checkpoint.files import LARGEST_RECORD, DamagedError, read_json, sync_folder, write_json
from runner.training.checkpoint.reading import Checkpoint, read_manifest
from runner.training.checkpoint.typed import MisfitError, flag, items, mapping, number, text, whole
from runner.training.past import check_arrays

RECORD = "run.json"
LOCK = "run.lock"
_SHOWN = 3


@dataclass(frozen=True)
class SavedRun:
    """A run and its checkpoints.

    Attributes:
      folder: holds one folder a checkpoint.
      record: run id, name, overrides, process, time of the start, and the job that goes on with it if it starts again.
    """

    folder: Path
    record: Mapping[str, Any]

    @property
    def run(self) -> str:
        """The run's id in the tracking store, or its folder's name where nothing was tracked."""
        return str(self.record["run"])

    @property
    def run_id(self) -> str | None:
        """The run's id in the tracking store."""
        return self.run if self.record["tracked"] else None


def register(
    folder: Path,
    run: str,
    *,
    tracked: bool,
    overrides: Sequence[str],
    name: str | None = None,
    job: Mapping[str, Any] | None = None,
    lasting: Mapping[str, Any] | None = None,
) -> SavedRun:
    """Notes a run that will save, and the process that it runs in.

    Args:
      folder: where runs keep their checkpoints.
      run: its id.
      tracked: whether the id is a tracking store's.
      overrides: the command line, without `resume`.
      name: of the run's own folder; null: the id. A folder that was copied elsewhere may have another.
      job: `requeue.Job.note` of the job that goes on with the run when it starts again; null: there is none.
      lasting: what stays with the run when it is resumed: `origin`, the run and step that it branches from, and
        `kept`.

    Raises:
      OSError: the disk is full, or can't be written.
    """
    own = folder / (name or run)
    own.mkdir(parents=True, exist_ok=True)
    sync_folder(folder)
    record = {
        "run": run,
        "tracked": tracked,
        "overrides": list(overrides),
        signature.FIELD: signature.sign(run, list(overrides)),
        "process": process.identity(),
        "started": time.time(),
        **({"job": dict(job)} if job else {}),
        **(lasting or {}),
    }
    _write(own, record)
    return SavedRun(own, record)


def _write(folder: Path, record: Mapping[str, Any]) -> None:
    write_json(folder / RECORD, {**record, "sha256": _digest(record)})


def _digest(record: Mapping[str, Any]) -> str:
    """Returns a digest of what a user has no reason to change; that a run has ended may be written by hand."""
    lasting = {key: value for key, value in record.items() if key not in ("ended", "finished", "sha256")}
    return hashlib.sha256(json.dumps(lasting, sort_keys=True).encode()).hexdigest()


def free_name(folder: Path, run: str) -> str:
    """Returns the name under which a run that nothing tracks keeps its checkpoints: no other run has any there."""
    names = [run, *(f"{run}-{count}" for count in range(2, 10_000))]
    return next(name for name in names if not storage.steps(folder / name))


def listed(folder: Path) -> tuple[list[SavedRun], dict[Path, DamagedError]]:
    """Returns the runs that left checkpoints.

    Args:
      folder: where runs keep their checkpoints.

    Returns:
      The runs, and of those whose record is damaged the folder and the reason.
    """
    saved: list[SavedRun] = []
    damaged: dict[Path, DamagedError] = {}
    for path in folder.glob(f"*/{RECORD}"):
        try:
            saved += [found] if (found := _read(path.parent)) is not None else []
        except DamagedError as error:
            damaged[path.parent] = error
    return saved, damaged


def find(key: str, wanted: str, folder: Path) -> tuple[SavedRun, int | None]:
    """Finds a run that left checkpoints.

    Args:
      key: `resume`, `branch` or `run`, for the refusal.
      wanted: `latest`, a run id or the beginning of one, or a folder; `@<step>` behind it names a checkpoint, and
        `@best` the best.
      folder: where runs keep their checkpoints.

    Returns:
      The run, and the step asked for.

    Raises:
      ConfigError: there is no such run or checkpoint, or what says so is damaged.
    """
    name, _, at = wanted.partition("@")
    saved, damaged = listed(folder)
    matches = _matching(key, name, saved, damaged)
    if len(matches) != 1 or not name:
        fix = f"set {key}=latest" if saved else "start one: python -m runner"
        raise invalid(key, wanted, problem=_allowed(saved, folder, many=len(matches) > 1), fix=fix)
    run = matches[0]
    return run, _step(key, wanted, run, at) if at else None


def of_job(folder: Path, job: requeue.Job, command: Sequence[str]) -> SavedRun | None:
    """Returns the run that an earlier start of a job began, one that has not finished before one that has.

    Args:
      folder: where runs keep their checkpoints.
      job: that has started again.
      command: the overrides as typed.
    """
    saved, _ = listed(folder)  # resume names one that is damaged
    found = [run for run in saved if job.began(run.record.get("job"), command)]
    order = [(bool(run.record.get("finished")), float(run.record["started"]), run) for run in found]
    return min(order, key=lambda one: one[:2])[2] if order else None


def _matching(
    key: str, name: str, saved: Sequence[SavedRun], damaged: Mapping[Path, DamagedError]
) -> Sequence[SavedRun]:
    if name and os.path.lexists(Path(name) / RECORD):
        try:
            found = _read(Path(name))
        except DamagedError as error:
            raise _damaged(key, name, error) from error
        if found is not None:
            return [found]
    if name == "latest":
        newest = sorted(saved, key=lambda one: float(one.record["started"]))[-1:]
        for folder, reason in damaged.items():  # which run it was, and when, is not known
            if not newest or (folder / RECORD).lstat().st_mtime > newest[0].record["started"]:
                raise _damaged(key, name, reason) from reason
        return newest
    exact = [one for one in saved if one.run == name]
    if not exact:
        for folder, reason in damaged.items():
            if name and folder.name.startswith(name):
                raise _damaged(key, name, reason) from reason
    return exact or [one for one in saved if one.run.startswith(name)]


def _damaged(key: str, name: str, error: DamagedError) -> ConfigError:
    return invalid(key, name, problem=f"that run's record is damaged ({error})", fix="name another run by its id")


def _step(key: str, wanted: str, run: SavedRun, at: str) -> int:
    there = storage.steps(run.folder)
    best = best_of(key, run)
    if at == "best" and best is not None:
        return int(best["step"])
    if at not in map(str, there):
        names = ", ".join(map(str, there)) + (f", and the best is {best['step']}" if best else "")
        raise invalid(
            key, wanted, problem=f"checkpoints of that run are {names}", fix=f"set {key}={run.run}@{there[-1]}"
        )
    return int(at)


def _read(folder: Path) -> SavedRun | None:
    """Returns the run of a folder with at least one checkpoint.

    Raises:
      DamagedError: it has checkpoints, and does not say whose.
    """
    if not storage.steps(folder):
        return None
    path = folder / RECORD
    record = read_json(path, LARGEST_RECORD)
    if "sha256" in record and record.pop("sha256") != _digest(record):
        raise DamagedError(f"{path} is not as it was written")
    try:
        mapping(record, "it", ("run", "tracked", "overrides", "process", "started"))
        if not re.fullmatch(r"\w[\w.-]*", text(record["run"], "run")):
            raise MisfitError("run must be a name and no path: folders are named by it")
        flag(record["tracked"], "tracked")
        number(record["started"], "started", finite=True)
        for name in ("ended", "finished", "kept"):
            flag(record.get(name, False), name)
        text(record.get("origin", ""), "origin")
        for argument in items(record["overrides"], "overrides"):
            text(argument, "overrides")
        for name, value in mapping(record["process"], "process").items():
            text(value, f"process.{name}")
        if "job" in record:
            job = mapping(record["job"], "job", ("id", "restarts", "command"))
            whole(job["restarts"], "job.restarts")
            for name in ("id", "command"):
                text(job[name], f"job.{name}")
    except MisfitError as error:
        raise DamagedError(f"{path} is not as it was written: {error}") from error
    return SavedRun(folder.absolute(), record)


def _allowed(saved: Sequence[SavedRun], folder: Path, *, many: bool) -> str:
    if not saved:
        return f"no run left a checkpoint in {folder}"
    newest = sorted(saved, key=lambda one: -float(one.record["started"]))[:_SHOWN]
    names = ", ".join(one.run for one in newest)
    return f"{'several runs begin so' if many else f'no such run in {folder}'}; the newest are {names}"


def best_of(key: str, run: SavedRun) -> dict[str, Any] | None:
    """Returns what is recorded of a run's best checkpoint; None where there is none.

    Raises:
      ConfigError: it is damaged.
    """
    try:
        return best_record.read(run.folder)
    except DamagedError as error:
        fix = f"take {best_record.NAME} out of that folder to go without a best checkpoint"
        raise invalid(key, run.run, problem=f"its best checkpoint is not known ({error})", fix=fix) from error


def open_checkpoint(key: str, run: SavedRun, step: int | None) -> Checkpoint:
    """Opens a run's checkpoint; every byte of it is checked.

    Args:
      key: `resume`, `branch` or `run`, for the refusal.
      run: the run.
      step: of the checkpoint; null: the last of its newest history, or, to look at a run with early stopping, the
        best.

    Raises:
      ConfigError: it is damaged, in which case the one before it is offered, or of a newer format.
    """
    there = storage.steps(run.folder)
    best = best_of(key, run)
    live = lineage.live(storage.lineages(run.folder))
    chosen = _default_step(key, run, live, best) if step is None else step
    try:
        checkpoint = Checkpoint(storage.place(run.folder, chosen))
        _check_run(checkpoint, run)
        return checkpoint
    except DamagedError as error:
        before = [one for one in there if one < chosen and storage.is_checkpoint(storage.place(run.folder, one))]
        fix = f"set {key}={run.run}@{before[-1]}, the one before it" if before else "there is none before it"
        raise invalid(
            key, run.run, problem=f"its checkpoint of step {chosen} is damaged ({error})", fix=fix
        ) from error


def _check_run(checkpoint: Checkpoint, run: SavedRun) -> None:
    """Checks that a checkpoint is this run's, and that its history can be gone on from."""
    if checkpoint.about["run"] != run.run:
        raise DamagedError(f"{checkpoint.folder} is of run {checkpoint.about['run']}")
    try:
        check_arrays(checkpoint.step, checkpoint.history())
    except ValueError as error:
        raise DamagedError(f"{checkpoint.folder} is not as it was written: {error}") from error


def earlier_defaults(run: SavedRun, step: int | None) -> dict[str, str]:
    """Returns the overrides that keep values of a run which were defaults when it began, and are others today.

    A recorded command line doesn't name a default. Until release 0.1.0 Adam's rate was 0.01 for every model, and a
    deep `model=gpt` was not scanned, which gives its variables other paths.

    Args:
      run: the run.
      step: of the checkpoint; None: the newest.

    Returns:
      Key -> value, as they are typed; empty if the checkpoint can't be read.
    """
    steps = storage.steps(run.folder)
    try:
        config = read_manifest(storage.place(run.folder, steps[-1] if step is None else step)).about["config"]
        optimizer = config["optimizer"]
        model = config["model"]
        builder = model["_target_"]
        rate = float(optimizer["learning_rate"])
    except (DamagedError, IndexError, KeyError, TypeError, ValueError):
        return {}
    kept: dict[str, str] = {}
    if optimizer["name"] == "adam" and 0.0 < rate < math.inf and rate != adam_learning_rate(builder):
        kept["optimizer.learning_rate"] = repr(rate)
    if builder == gpt_options.TARGET and model.get("scan") is False:
        kept["model.scan"] = "false"
    return kept


def _default_step(key: str, run: SavedRun, live: Sequence[int], best: Mapping[str, Any] | None) -> int:
    """Returns the step that is meant where none is named: training goes on from the last."""
    last = live[-1]
    if key != "run" or best is None or best["step"] not in live:
        return last
    try:
        trainer = read_manifest(storage.place(run.folder, last)).about["config"]["trainer"]
        return int(best["step"]) if trainer["early_stopping"]["metric"] is not None else last
    except (DamagedError, KeyError, TypeError):
        return last


@contextmanager
def held(key: str, run: SavedRun) -> Iterator[None]:
    """Keeps other processes from going on with a run, until the block or the process ends, however it does.

    Args:
      key: `resume`, for the refusal.
      run: the run.

    Raises:
      ConfigError: another process has it, or the folder can't be written.
    """
    with ExitStack() as stack:
        try:
            stack.enter_context(locked_at_once(run.folder / LOCK))
        except HeldError as error:
            raise invalid(
                key, run.run, problem=f"process {error.holder} runs it, in {run.folder}", fix="let it end, or end it"
            ) from None
        except OSError as error:
            raise invalid(
                key,
                run.run,
                problem=f"its folder {run.folder} can't be written ({error.strerror})",
                fix="make it writable, or name a folder that is",
            ) from error
        yield


def check_not_running(key: str, run: SavedRun) -> None:
    """Refuses a run whose process is still there.

    Raises:
      ConfigError: it is, or it may be: it is another machine's.
    """
    there = run.record["process"]
    job = requeue.job()
    if there == process.identity() or run.record.get("ended") or process.is_gone(there):
        return
    if job is not None and job.has_ended(run.record.get("job")):
        return
    raise ConfigError(
        f"{key}={run.run}: process {there.get(process.PID)} on {there.get(process.HOST)} still runs it, or "
        f'can\'t be seen from here; end it, or write "ended": true into {run.folder / RECORD} if it did'
    )


def keep(run: SavedRun, *, kept: bool) -> None:
    """Notes whether `runner.runs clean` leaves the checkpoints of a run that no store knows.

    Raises:
      OSError: the disk is full, or can't be written.
    """
    _write(run.folder, {**run.record, "kept": kept})


def end(run: SavedRun, *, finished: bool) -> None:
    """Notes that the run's process is done with it.

    Args:
      run: the run.
      finished: whether it came to its end, its results recorded.

    Raises:
      OSError: the disk is full, or can't be written.
    """
    _write(run.folder, {**run.record, "ended": True, "finished": finished})

"""Runs that left checkpoints, found by id without a tracking server: `outputs/checkpoints/<run>/`."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from runner.checkpoint import storage
from runner.checkpoint.storage import Checkpoint, DamagedError, write_json
from runner.errors import ConfigError, refuse
from runner.tracking import process

_RECORD = "run.json"
_SHOWN = 3


@dataclass(frozen=True)
class SavedRun:
    """A run and its checkpoints.

    Attributes:
      folder: holds one folder a checkpoint.
      record: run id, name, overrides, process, time of the start.
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


def register(folder: Path, run: str, *, tracked: bool, overrides: Sequence[str]) -> SavedRun:
    """Notes a run that will save, and the process that it runs in.

    Args:
      folder: where runs keep their checkpoints.
      run: its id.
      tracked: whether the id is a tracking store's.
      overrides: the command line, without `resume`.
    """
    own = folder / run
    own.mkdir(parents=True, exist_ok=True)
    record = {
        "run": run,
        "tracked": tracked,
        "overrides": list(overrides),
        "process": process.identity(),
        "started": time.time(),
    }
    write_json(own / _RECORD, record)
    return SavedRun(own, record)


def find(key: str, wanted: str, folder: Path) -> tuple[SavedRun, int | None]:
    """Finds a run that left checkpoints.

    Args:
      key: `resume` or `run`, for the refusal.
      wanted: `latest`, a run id or the beginning of one, or a folder; `@<step>` behind it names a checkpoint, and
        `@best` the best.
      folder: where runs keep their checkpoints.

    Returns:
      The run, and the step asked for.

    Raises:
      ConfigError: there is no such run or checkpoint.
    """
    name, _, at = wanted.partition("@")
    saved = [found for path in folder.glob(f"*/{_RECORD}") if (found := _read(path.parent)) is not None]
    if (found := _read(Path(name))) is not None:
        matches = [found]
    elif name == "latest":
        matches = sorted(saved, key=lambda one: float(one.record["started"]))[-1:]
    else:
        matches = [one for one in saved if one.run == name] or [one for one in saved if one.run.startswith(name)]
    if len(matches) != 1 or not name:
        raise refuse(key, wanted, allowed=_allowed(saved, folder, many=len(matches) > 1), mend=f"set {key}=latest")
    run = matches[0]
    return run, _step(key, wanted, run, at) if at else None


def _step(key: str, wanted: str, run: SavedRun, at: str) -> int:
    there = storage.steps(run.folder)
    best = storage.best(run.folder)
    if at == "best" and best is not None:
        return int(best["step"])
    if not at.isdigit() or int(at) not in there:
        names = ", ".join(map(str, there)) + (f", and the best is {best['step']}" if best else "")
        raise refuse(
            key, wanted, allowed=f"checkpoints of that run are {names}", mend=f"set {key}={run.run}@{there[-1]}"
        )
    return int(at)


def _read(folder: Path) -> SavedRun | None:
    """Returns the run of a folder with at least one checkpoint."""
    try:
        record = json.loads((folder / _RECORD).read_text())
        known = {"run", "tracked", "overrides", "process", "started"} <= set(record)
    except (OSError, ValueError, TypeError):
        return None
    return SavedRun(folder.absolute(), record) if known and storage.steps(folder) else None


def _allowed(saved: Sequence[SavedRun], folder: Path, *, many: bool) -> str:
    if not saved:
        return f"no run left a checkpoint in {folder}"
    newest = sorted(saved, key=lambda one: -float(one.record["started"]))[:_SHOWN]
    names = ", ".join(one.run for one in newest)
    return f"{'several runs begin so' if many else f'no such run in {folder}'}; the newest are {names}"


def open_checkpoint(key: str, run: SavedRun, step: int | None) -> Checkpoint:
    """Opens a run's checkpoint; every byte of it is checked.

    Args:
      key: `resume` or `run`, for the refusal.
      run: the run.
      step: of the checkpoint; null: the last, or, to look at a run with early stopping, the best.

    Raises:
      ConfigError: it is damaged, in which case the one before it is offered, or of a newer format.
    """
    there = storage.steps(run.folder)
    chosen = _default_step(key, run, there[-1]) if step is None else step
    try:
        return Checkpoint(storage.place(run.folder, chosen))
    except DamagedError as error:
        before = [one for one in there if one < chosen]
        mend = f"set {key}={run.run}@{before[-1]}, the one before it" if before else "there is none before it"
        raise refuse(
            key, run.run, allowed=f"its checkpoint of step {chosen} is damaged ({error})", mend=mend
        ) from error


def _default_step(key: str, run: SavedRun, last: int) -> int:
    """Returns the step that is meant where none is named: training goes on from the last."""
    best = storage.best(run.folder)
    if key == "resume" or best is None:
        return last
    try:
        trainer = storage.read_manifest(storage.place(run.folder, last))["config"]["trainer"]
        return int(best["step"]) if trainer["early_stopping"]["metric"] is not None else last
    except (DamagedError, KeyError, TypeError):
        return last


def check_not_running(key: str, run: SavedRun) -> None:
    """Refuses a run whose process is still there.

    Raises:
      ConfigError: it is, or it may be: it is another machine's.
    """
    there = run.record["process"]
    if there == process.identity() or run.record.get("ended") or process.is_gone(there):
        return
    raise ConfigError(
        f"{key}={run.run} is refused: process {there.get(process.PID)} on {there.get(process.HOST)} still runs it, or "
        f'can\'t be seen from here; end it, or write "ended": true into {run.folder / _RECORD} if it did'
    )


def end(run: SavedRun, *, finished: bool) -> None:
    """Notes that the run's process is done with it.

    Args:
      run: the run.
      finished: whether it came to its end, its results recorded.
    """
    write_json(run.folder / _RECORD, {**run.record, "ended": True, "finished": finished})

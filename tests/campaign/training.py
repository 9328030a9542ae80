"""The training command in a forked process, on an engine in NumPy: what a campaign breaks is all around it.

Everything else is the real thing: the command line, Hydra, the loop, checkpoints, the tracker and its store. A run
takes a second or two, as the caller has imported the libraries; its pictures are not drawn.
"""

from __future__ import annotations

import functools
import json
import os
import sqlite3
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import mlflow.store.tracking.sqlalchemy_store  # noqa: F401 - for every case
import numpy as np
import sklearn.datasets  # noqa: F401 - of the digits

import runner.tracking
from runner.cli.app import run_command
from runner.config.schema import TrackingConfig
from runner.engine.base import HostBatches
from runner.errors import EngineError
from runner.record import tracked as record
from runner.run import report, train
from runner.task import classification
from runner.task.base import Evaluation
from runner.tracking import tracker
from runner.tracking.records import clean_key
from runner.tracking.store import open_store
from runner.training.checkpoint import storage
from runner.training.checkpoint.reading import Checkpoint
from tests.training.checkpoint import numpy_engine

STEPS = 66  # of three epochs of digits
_OVERRIDES = (
    *("engine=jax", "mesh=single", "dataset=digits", "dataset.batch_size=64", "trainer.epochs=3"),
    *("trainer.log_every_steps=1", "trainer.steps_per_call=2", "trainer.progress=none", "trainer.log_model=false"),
    *("trainer.checkpoint.every_steps=20", "trainer.checkpoint.keep=2", "trainer.verify_first=false"),
)
_PATIENCE_S = 1.0  # of a run's end for a store that is away
_LONGEST_S = 90.0
Points = list[tuple[str, int, float]]


class Engine(numpy_engine.NumpyEngine):
    """Softmax regression on the digits."""

    def build(self) -> None:
        """Has nothing to build."""

    def evaluate(self, batches: Iterable[HostBatches], *, keep_outputs: bool = False) -> Evaluation:
        """Evaluates; the outputs are not looked at."""
        found = super().evaluate(batches, keep_outputs=keep_outputs)
        classes = self.weight.shape[1]
        totals = dict(found.totals) | {"confusion": np.eye(classes)}
        return replace(found, totals=totals, outputs=np.eye(classes)[np.arange(found.examples) % classes])

    @contextmanager
    def trace(self, folder: Path) -> Any:
        """Traces nothing."""
        del folder
        yield


@dataclass(frozen=True)
class Done:
    """A process that ended.

    Attributes:
      code: its exit code; null: it had to be killed.
      lines: of its stderr.
      seconds: that it took.
      points: that the run logged: metric, step, value.
      longest_wait: seconds of the longest call that logged a point.
    """

    code: int | None
    lines: tuple[str, ...]
    seconds: float
    points: Points
    longest_wait: float


@dataclass(frozen=True)
class Places:
    """Where a run writes: what fails in a case, and what a campaign itself needs.

    Attributes:
      outputs: the run's folder, its checkpoints, its unsent records and its store.
      elsewhere: the user's state and the temporary folder.
      kept: the campaign's own, where nothing fails.
      uri: of the store.
      experiment: that the run goes to.
    """

    outputs: Path
    elsewhere: Path
    kept: Path
    uri: str
    experiment: str = "runner"


AtStep = Callable[[int], None]


def run(places: Places, at_step: AtStep, *, begin: Callable[[], None] = lambda: None) -> Done:
    """Trains in a process of its own.

    Args:
      places: where.
      at_step: called in the training thread, with the step, before each point is logged.
      begin: called in the process before the command.
    """

    def body() -> int:
        logged: Points = []
        waits = [0.0]
        _shorten(places)
        log_metrics = tracker.MlflowTracker.log_metrics

        def noted(self: Any, step: int, values: Mapping[str, float]) -> None:
            at_step(step)
            for key, value in values.items():
                logged.append((clean_key(key), step, float(value)))
            began = time.monotonic()
            log_metrics(self, step, values)
            waits.append(time.monotonic() - began)

        tracker.MlflowTracker.log_metrics = noted  # type: ignore[method-assign]
        folder = places.outputs
        sys.argv = ["runner", *_OVERRIDES, f"tracking.uri={places.uri}", f"hydra.run.dir={folder}/run"]
        sys.argv += [f"trainer.checkpoint.folder={folder}/checkpoints", f"tracking.experiment={places.experiment}"]
        begin()
        try:
            return run_command(_command)
        finally:
            handle = os.open(places.kept / "logged.json", os.O_WRONLY)  # made before anything failed
            os.write(handle, json.dumps([logged, max(waits)]).encode())
            os.close(handle)

    (places.kept / "logged.json").write_text("")
    code, lines, seconds = forked(body, places)
    text = (places.kept / "logged.json").read_text()
    points, wait = json.loads(text) if text else ([], 0.0)
    return Done(code, lines, seconds, [(key, step, value) for key, step, value in points], wait)


def next_start(places: Places) -> Done:
    """Starts another run in the same store, which stores what the one before could not, and ends it."""

    def body() -> int:
        _shorten(places)
        config = TrackingConfig(uri=places.uri)
        opened = record.open_tracker(config, run_name="next", params={}, tags={})
        return 0 if opened.finish("FINISHED") else 1

    code, lines, seconds = forked(body, places)
    return Done(code, lines, seconds, [], 0.0)


def _command(config: Any, composed: Any) -> None:
    train.run(config, composed)


def _shorten(places: Places) -> None:
    """Puts in the engine of this module, keeps the run's files where the case wants them, and waits less."""
    os.environ["XDG_STATE_HOME"] = os.environ["TMPDIR"] = str(places.elsewhere)
    os.environ.pop("MLFLOW_TRACKING_URI", None)
    import tempfile

    tempfile.tempdir = str(places.elsewhere)
    runner.tracking.project_root = lambda: places.outputs  # type: ignore[attr-defined]
    opened = functools.partial(runner.tracking.open_tracker, finish_timeout_s=_PATIENCE_S)
    record.open_tracker = opened  # type: ignore[attr-defined]
    quick = functools.partial(tracker.AsyncWriter, interval_s=0.02, batch_size=25)
    tracker.AsyncWriter = quick  # type: ignore[misc, assignment]
    train.make_engine = lambda *_: Engine(64, 10, rate=0.01)  # type: ignore[attr-defined]
    train.compile_step = lambda *_, **__: None  # type: ignore[attr-defined]
    train.plan_engine = _no_plan  # type: ignore[attr-defined]
    # Drawing them would be half of a run's time.
    for module, names in ((report.plots, ("curves",)), (classification.pictures, ("confusion", "wrong"))):
        for name in names:
            setattr(module, name, lambda path, *_, **__: path.write_bytes(b"a picture" * 4000))


def _no_plan(*_: object) -> Any:
    raise EngineError("an engine in NumPy has no program")


def forked(body: Callable[[], int], places: Places) -> tuple[int | None, tuple[str, ...], float]:
    """Runs a function in a forked process; returns its exit code, the lines of its stderr and its seconds."""
    began = time.monotonic()
    pid = os.fork()
    if not pid:
        code = 70
        try:
            errors = os.open(places.kept / "stderr", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
            os.dup2(errors, 2)
            sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115 - it lives as long as the process
            sys.stderr = open(2, "w", buffering=1, closefd=False)  # noqa: SIM115
            code = body()
        except SystemExit as ended:
            code = int(ended.code or 0)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    code = _wait(pid, began + _LONGEST_S)
    lines = (places.kept / "stderr").read_text(errors="replace").splitlines()
    return code, tuple(lines), time.monotonic() - began


def _wait(pid: int, deadline: float) -> int | None:
    while time.monotonic() < deadline:
        found, status = os.waitpid(pid, os.WNOHANG)
        if found:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.005)
    os.kill(pid, 9)
    os.waitpid(pid, 0)
    return None


def make_store(path: Path, kept: Path) -> None:
    """Makes an empty store in a process of its own, since an open one must not be inherited by others."""

    def body() -> int:
        open_store(f"sqlite:///{path}", "runner")
        return 0

    code, lines, _ = forked(body, Places(kept, kept, kept, ""))
    if code:
        raise RuntimeError("\n".join(lines))


@dataclass(frozen=True)
class Stored:
    """What a store holds of the training run of an experiment.

    Attributes:
      status: of the run; null where there is no run.
      points: (metric, step, value), each as often as it is stored.
    """

    status: str | None
    points: Points


def stored(database: Path, experiment: str = "runner") -> Stored:
    """Reads the training run's status and points straight from a store's database."""
    with closing(sqlite3.connect(database)) as connection:
        query = (
            "SELECT run_uuid, status FROM runs JOIN experiments USING (experiment_id) "
            "WHERE runs.name != 'next' AND experiments.name = ?"
        )
        runs = connection.execute(query, (experiment,)).fetchall()
        if not runs:
            return Stored(None, [])
        query = "SELECT key, step, value FROM metrics WHERE run_uuid = ?"
        return Stored(runs[0][1], [(k, s, v) for k, s, v in connection.execute(query, (runs[0][0],)).fetchall()])


def missing_or_twice(done: Done, found: Stored) -> str:
    """Returns in words in what the points in a store differ from those that a run logged; empty: in nothing."""
    wanted, there = Counter(done.points), Counter(found.points)
    missing, more = wanted - there, there - wanted
    told = [f"{missing.total()} of {wanted.total()} points are missing, as {min(missing)}"] if missing else []
    told += [f"{more.total()} points are stored twice or with other values, as {min(more)}"] if more else []
    return ", ".join(told)


def checkpoints(folder: Path) -> tuple[list[int], list[str]]:
    """Returns the steps of the checkpoints that open, and what is wrong with those that don't."""
    steps, wrong = [], []
    for path in folder.glob("*/run.json"):
        for step in storage.steps(path.parent):
            try:
                steps.append(Checkpoint(storage.place(path.parent, step)).step)
            except Exception as error:  # any, told by its case
                wrong.append(f"the checkpoint of step {step} does not open: {error}")
    return steps, wrong


def judge(done: Done, after: Done, found: Stored, folder: Path, most_lines: int = 20) -> list[str]:
    """Returns what a run did that it must not, in words.

    Args:
      done: the run.
      after: the next start.
      found: what the store holds after that.
      folder: of the checkpoints.
      most_lines: that the run may have said.
    """
    text = "\n".join(done.lines)
    wrong = []
    if done.code not in (0, 1, 2) or after.code != 0:
        wrong.append(f"exit codes {done.code} and {after.code}: {' | '.join((*done.lines, *after.lines))[-600:]}")
    if "Traceback" in text or "Logging error" in text:
        wrong.append(f"a traceback: {text[-600:]}")
    if len(done.lines) > most_lines:
        wrong.append(f"{len(done.lines)} lines on stderr")
    if done.code in (1, 2) and not (done.lines and done.lines[-1].startswith("error: ")):
        wrong.append(f"exit code {done.code}, and the last line is {done.lines[-1:]}")
    if done.longest_wait > 0.5:
        wrong.append(f"a step waited {done.longest_wait:.2f} s")
    if done.code == 2:
        return wrong + ([f"refused after {len(done.points)} points"] if done.points else [])
    lost = "are lost" in text
    if (difference := missing_or_twice(done, found)) and not lost:
        wrong.append(difference)
    if lost and done.code == 0:
        wrong.append("points are lost and the exit code is 0")
    allowed = ("FINISHED",) if done.code == 0 else (None, "FAILED", "KILLED")
    if found.status not in allowed:
        wrong.append(f"exit code {done.code} and status {found.status}")
    steps, damaged = checkpoints(folder)
    wrong += damaged
    if done.code == 0 and max(steps, default=0) != STEPS:
        wrong.append(f"exit code 0 and the last checkpoint is of step {max(steps, default=0)} of {STEPS}")
    return wrong

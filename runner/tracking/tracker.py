"""The tracker that records in MLflow."""

from __future__ import annotations

import atexit
import contextlib
import math
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from mlflow.exceptions import MlflowException

from runner.config.schema import TrackingConfig
from runner.errors import Interrupted, TrackingError
from runner.host.late import late
from runner.host.signals import current
from runner.tracking import page, start, unsent, view
from runner.tracking.base import Example, Predicts, Status, Tracker
from runner.tracking.dead import mark_dead_runs
from runner.tracking.location import tracking_uri, ui_lines
from runner.tracking.mlflow_import import warn
from runner.tracking.reason import http_code, reason
from runner.tracking.records import Artifact, Dataset, Ending, Point, Record, Tag, clean_key
from runner.tracking.send import Sender, may_pass
from runner.tracking.start import RunSpec
from runner.tracking.store import Store, open_store
from runner.tracking.writer import Writer

if TYPE_CHECKING:
    from runner.tracking import models
else:
    models = late("runner.tracking.models")  # at a run's end, with what is slow of MLflow

_ENDING_ATTEMPTS = 3
_ENDING_DELAY_S = 0.5
_LATER = "stored at the next start, or by"
_NOT_THERE = "RESOURCE_DOES_NOT_EXIST"
_HASTE_S = 15.0  # for what is left, where the process is about to be ended from outside


class MlflowTracker(Tracker):
    """Records one run through a background thread; see `Tracker`."""

    run_id: str

    def __init__(self, store: Store, run_id: str, *, root: Path, folder: Path | None, finish_timeout_s: float) -> None:
        """Starts the thread that stores what is logged.

        Args:
          store: where the run is.
          run_id: the run.
          root: the project's folder, in whose outputs a file is written of what could not be stored.
          folder: the run's own; null: `root`.
          finish_timeout_s: `finish` gives up when the store has taken nothing for so long.
        """
        self._store = store
        self.run_id = run_id
        self._root = root
        self._folder = (folder or root).absolute()
        self._finish_timeout_s = finish_timeout_s
        self._send = Sender(store.client, run_id)
        self._writer = Writer(self._send, may_pass=may_pass, warn=warn)
        self._names: dict[str, str] = {}
        self._nonfinite: set[str] = set()
        self._last_step = 0
        self._described = ""
        self._view: str | None = None  # key of the columns that the list of runs opens with
        self._finished = False
        self._notes: list[str] = []
        atexit.register(self.finish, "FAILED")  # a program that ends without a word did not finish

    def log_metrics(self, step: int, values: Mapping[str, float]) -> None:
        """Queues a point of each metric; see `Tracker`."""
        now = _now_ms()
        self._last_step = step
        self.page.log(values)
        self._writer.add_points([self._point(key, float(value), now, step) for key, value in values.items()])

    def set_tags(self, tags: Mapping[str, str]) -> None:
        """Queues tags of the run."""
        self.page.tag(tags)
        for key, value in tags.items():
            self._writer.add(Tag(key, str(value)))

    def log_dataset(self, name: str, digest: str, source: str, context: str) -> None:
        """Queues a dataset input; see `Tracker`."""
        self._writer.add(Dataset(name, digest[:36], source, context))

    def log_artifact(self, path: Path, folder: str | None = None) -> None:
        """Queues a file for upload; see `Tracker`."""
        if not path.is_file():
            warn(f"{path} is not recorded: there is no such file")
            return
        self._writer.add(Artifact(str(path.absolute()), folder or ""))
        self.page.add_file(f"{folder}/{path.name}" if folder else path.name)

    def log_keras_model(self, model: Predicts, input_example: Example, name: str = "model") -> None:
        """Stores a model at once; see `Tracker`."""
        self.flush(self._finish_timeout_s)  # the model shows the metrics of its step
        try:
            models.log_keras_model(self._store, self.run_id, model, input_example, name=name, step=self._last_step)
        except Exception as error:  # a trained run is worth more than its model's entry
            warn(f"the model is not logged: {reason(error)}")

    def logged(self) -> dict[str, dict[int, float]]:
        """Returns the points that are stored; see `Tracker`."""
        client = self._store.client
        try:
            keys = client.get_run(self.run_id).data.metrics
            return {key: {m.step: m.value for m in client.get_metric_history(self.run_id, key)} for key in keys}
        except Exception as error:
            raise TrackingError(f"the points of run {self.run_id} can't be read: {reason(error)}") from error

    def flush(self, timeout_s: float) -> bool:
        """Waits until everything queued is stored; see `Tracker`."""
        return self._writer.flush(timeout_s)

    def finish(self, status: Status, *, in_haste: bool = False) -> bool:
        """Stores what is left and the status; see `Tracker`.

        Interrupted, it stops waiting, keeps what is left in the file, and the status is KILLED.
        """
        if self._finished:
            return True
        self._finished = True
        atexit.unregister(self.finish)
        in_time = False
        if self._described:
            self._writer.add(self._description(status))
        try:
            in_time = self._drain(status, in_haste=in_haste)
        except (Interrupted, KeyboardInterrupt):
            status = "KILLED"
            raise
        finally:
            with current().deferring():
                kept = self._end(status, self._writer.abandon(), attempts=_ENDING_ATTEMPTS if in_time else 1)
                kept &= self._keep(self._writer.rejected, "rejected.jsonl", "refused; to try again:")
                kept &= self._is_there()
            if self._writer.left_out:
                self._notes.append(f"{self._writer.left_out:,} points were left out while the store was away")
        return kept

    def _drain(self, status: Status, *, in_haste: bool) -> bool:
        """Waits for what is left; with a limit where a scheduler or the other processes soon end this one."""
        if in_haste:
            return self._writer.flush(min(self._finish_timeout_s, _HASTE_S))
        if status == "KILLED":
            return self._writer.flush(self._finish_timeout_s)
        return self._writer.drain(self._finish_timeout_s)

    def _is_there(self) -> bool:
        """Returns whether the store still has the run; asked only if it rejected something for good."""
        rejected = self._writer.rejected
        if not rejected:
            return True
        try:
            is_active = self._store.client.get_run(self.run_id).info.lifecycle_stage == "active"
            fix = f"`mlflow runs restore --run-id {self.run_id}`, then store what is kept"
        except Exception as error:
            # A proxy's status says nothing of the run.
            is_answer = isinstance(error, MlflowException) and http_code(error) is None
            is_active = not (is_answer and getattr(error, "error_code", "") == _NOT_THERE)
            fix = f"branch={self.run_id} begins a new run with its last checkpoint"
        if is_active:
            is_ended = not any(isinstance(record, Ending) for record in rejected)
            self.lost = "" if is_ended else "the store rejects its status; see the lines above"
            return is_ended
        self.lost = f"it was deleted from the store while it ran; {fix}"
        return False

    def describe(self) -> list[str]:
        """Returns where the run can be looked at, and what could not be stored."""
        return [*ui_lines(self._store.uri, self._store.experiment_id, self.run_id, self._view), *self._notes]

    def show_page(self) -> None:
        """Queues the description, and keeps the columns of the list of runs; see `Tracker`."""
        if self.page.columns and self._view is None:
            self._view = view.save(self._store, self.page.task, self.page.columns)
        self._writer.add(self._description("RUNNING"))

    def _description(self, status: str) -> Tag:
        self._described = status
        return Tag(page.TAG, self.page.markdown(status, page.address_of(self._store.experiment_id, self.run_id)))

    def _point(self, key: str, value: float, now: int, step: int) -> Point:
        name = self._names.get(key)
        if name is None:
            name = self._names[key] = clean_key(key)
        if math.isinf(value):
            if name not in self._nonfinite:
                self._nonfinite.add(name)
                self._writer.add(Tag(f"runner.nonfinite.{name}", f"{value} at step {step}, stored as NaN"))
            value = math.nan
        return Point(name, value, now, int(step))

    def _end(self, status: Status, left: list[Record], *, attempts: int) -> bool:
        """Keeps what is left, and stores the status unless points come before it; returns whether nothing is lost."""
        if any(isinstance(record, Point) for record in left):
            ending = Ending(status, _now_ms())
            kept = self._keep([*left, ending], "jsonl", _LATER)
            if status == "KILLED":  # the wait was cut short, so the store may well answer
                with contextlib.suppress(Exception):
                    self._send([ending], unsure=False)
            return kept
        kept = self._keep(left, "jsonl", _LATER)
        ending = Ending(status if kept or status != "FINISHED" else "FAILED", _now_ms())
        if self._described not in ("", ending.status):
            with contextlib.suppress(Exception):  # the status itself says it
                self._send([self._description(ending.status)], unsure=False)
        for attempt in range(attempts):
            time.sleep(_ENDING_DELAY_S * attempt)
            try:
                self._send([ending], unsure=False)
            except Exception as error:
                if not may_pass(error):
                    self._writer.rejected.append(ending)
                    return kept
            else:
                return kept
        return self._keep([ending], "jsonl", _LATER) and kept

    def _keep(self, records: list[Record], suffix: str, fix: str) -> bool:
        """Writes records to a file that the next run finds; returns whether that worked."""
        if not records:
            return True
        name = f"{self.run_id}.{suffix}"
        kept = True
        try:
            path = unsent.write_somewhere(self._root, name, self._store.uri, self.run_id, records, folder=self._folder)
        except TrackingError as error:
            kept = False
            note = f"{len(records)} records are lost: the store is away, and {error}"
        else:
            note = f"{len(records)} records are kept in {path}; {fix} `python -m runner.tracking.replay {path}`"
        self._notes.append(note)
        warn(note)
        return kept


def start_run(
    config: TrackingConfig,
    spec: RunSpec,
    *,
    root: Path,
    folder: Path | None,
    resume_run_id: str | None,
    finish_timeout_s: float,
) -> Tracker:
    """Starts or resumes a run; see `runner.tracking.open_tracker`, whose name, params and tags are in `spec`."""
    uri = tracking_uri(config.uri, root)
    store = open_store(uri, config.experiment)
    unsent.replay_all(root, uri, warn)
    try:
        mark_dead_runs(store, warn)
    except Exception as error:  # housekeeping must not stop a run
        warn(f"runs left RUNNING were not looked for: {reason(error)}")
    current().raise_if_requested()  # it waited for the database
    with current().deferring():  # a run that is made and that nobody holds would stay RUNNING
        if resume_run_id:
            store = replace(store, experiment_id=start.resume(store, resume_run_id, spec))
            run_id = resume_run_id
        else:
            run_id = start.create(store, spec, root)
        return MlflowTracker(store, run_id, root=root, folder=folder, finish_timeout_s=finish_timeout_s)


def _now_ms() -> int:
    return int(time.time() * 1000)

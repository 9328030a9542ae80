"""Trackers that record in MLflow: a run of this process, and one that has ended."""

from __future__ import annotations

import atexit
import math
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from mlflow.system_metrics.system_metrics_monitor import SystemMetricsMonitor

from runner.errors import Interrupted, TrackingError
from runner.host.signals import current
from runner.tracking.base import Status, Tracker
from runner.tracking.location import ui_lines
from runner.tracking.mlflow_setup import reason, warn
from runner.tracking.records import Artifact, Ending, Point, Record, Tag, clean_key
from runner.tracking.run_file import RunFile, sync_command
from runner.tracking.send import POINTS_PER_CALL, is_retryable, write
from runner.tracking.store import Store
from runner.tracking.writer import AsyncWriter

# For the remaining records if this process is about to be ended from outside. The whole record of such an end has 25 s
# (`RECORD_S` in processes/timeouts.py), in which the status and the file must fit too.
_HASTE_S = 15.0


class MlflowTracker(Tracker):
    """Records one run through a background thread; see `Tracker` for its methods."""

    run_id: str

    def __init__(self, store: Store, run_id: str, *, folder: Path, finish_timeout_s: float) -> None:
        """Starts the thread that stores what is logged, and appends it to a file in the run's own folder.

        `finish` gives up if the store has accepted nothing for `finish_timeout_s` seconds.
        """
        self._store = store
        self.run_id = run_id
        self._finish_timeout_s = finish_timeout_s
        self._file = RunFile(folder, run_id, store.uri)
        self._write = partial(write, store.client, run_id)
        self._writer = AsyncWriter(self._write, self._file, warn)
        self._monitor: SystemMetricsMonitor | None = None
        self._is_finished = False
        self._notes: list[str] = []
        # A program that ends without calling `finish` has failed.
        atexit.register(self.finish, "FAILED")

    def watch_machine(self) -> None:
        """See `Tracker`."""
        # A resumed run's points follow those of its earlier processes.
        self._monitor = SystemMetricsMonitor(self.run_id, resume_logging=True, tracking_uri=self._store.uri)
        self._monitor.start()

    def log_metrics(self, step: int, values: Mapping[str, float]) -> None:
        """See `Tracker`."""
        self._writer.add(_points(step, values))

    def set_tags(self, tags: Mapping[str, str]) -> None:
        """See `Tracker`."""
        self._writer.add([Tag(key, str(value)) for key, value in tags.items()])

    def log_artifact(self, path: Path, folder: str | None = None) -> None:
        """See `Tracker`."""
        if not path.is_file():
            warn(f"could not record {path}: there is no such file")
            return
        self._writer.add([Artifact(str(path.absolute()), folder or "")])

    def log_model(self, save: Callable[[Store, str], str]) -> str | None:
        """See `Tracker`."""
        # MLflow shows the model with the metrics of its step, which must be stored first.
        self.flush(self._finish_timeout_s)
        try:
            return save(self._store, self.run_id)
        # The run has trained: failing it for its model's entry would throw that away.
        except Exception as error:
            warn(f"could not log the model: {reason(error)}")
            return None

    def logged(self) -> dict[str, dict[int, float]]:
        """See `Tracker`."""
        return _logged(self._store, self.run_id)

    def flush(self, timeout_s: float) -> bool:
        """See `Tracker`."""
        return self._writer.flush(timeout_s)

    def describe(self) -> list[str]:
        """See `Tracker`."""
        return [*ui_lines(self._store.uri, self._store.experiment_id, self.run_id), *self._notes]

    def finish(self, status: Status, *, in_haste: bool = False) -> bool:
        """Stores the remaining records and the status; see `Tracker`.

        An interrupt ends the wait: the rest is saved in the file, and the status is KILLED.
        """
        if self._is_finished:
            return True
        self._is_finished = True
        atexit.unregister(self.finish)
        if self._monitor is not None:
            # It asks the store before it ends, which may take as long as a request.
            threading.Thread(target=self._monitor.finish, daemon=True).start()
        try:
            limit = min(self._finish_timeout_s, _HASTE_S) if in_haste else self._finish_timeout_s
            # While somebody waits for the end (a scheduler, a person, another process) the limit is of the whole wait.
            self._writer.flush(limit, while_moving=not in_haste and status != "KILLED")
        except (Interrupted, KeyboardInterrupt):
            status = "KILLED"
            raise
        finally:
            # Another signal must not lose what is recorded here.
            with current().deferring():
                is_kept = self._end(status, self._writer.abandon())
        return is_kept

    def _end(self, status: Status, remaining: list[Record]) -> bool:
        """Records the status, in the store if it has all points; returns whether nothing is lost."""
        writer = self._writer
        has_all_points = not any(isinstance(one, Point) for one in remaining)
        if status == "FINISHED" and remaining and writer.unfiled:
            # A run that has lost records has not finished.
            status = "FAILED"
        ending = Ending(status, _now_ms())
        writer.file(ending)
        unsent = len(remaining) + writer.rejected
        is_stored = False
        # If the wait for a killed run was cut short, the store may well respond.
        if has_all_points or status == "KILLED":
            is_stored = self._store_ending(ending)
        is_complete = is_stored and not unsent
        self._file.close(sent=is_complete)
        if is_complete:
            return True
        note = f"{unsent or 1:,} records are not in the store"
        if writer.unfiled:
            note += f" and are lost, because {self._file.path} can't be written"
        else:
            note += f", but in {self._file.path}; to store them: {sync_command(self._file.path.parent)}"
        self._notes.append(note)
        warn(note)
        return not writer.unfiled and not self.lost

    def _store_ending(self, ending: Ending) -> bool:
        try:
            self._write([ending])
        except Exception as error:
            if not is_retryable(error):
                self.lost = f"the store rejects it; if it was deleted: `mlflow runs restore --run-id {self.run_id}`"
            return False
        return True


class Attachment(Tracker):
    """Adds to a run that has ended, at once; its status and times don't change.

    Its methods raise TrackingError if the store fails.
    """

    run_id: str

    def __init__(self, store: Store, run_id: str) -> None:
        self._store = store
        self.run_id = run_id

    def log_metrics(self, step: int, values: Mapping[str, float]) -> None:
        """Stores a point of each metric, an infinite one as NaN."""
        points = _points(step, values)
        for start in range(0, len(points), POINTS_PER_CALL):
            self._add(points[start : start + POINTS_PER_CALL])

    def set_tags(self, tags: Mapping[str, str]) -> None:
        """Sets tags of the run."""
        for key, value in tags.items():
            self._add([Tag(key, str(value))])

    def logged(self) -> dict[str, dict[int, float]]:
        """See `Tracker`."""
        return _logged(self._store, self.run_id)

    def log_artifact(self, path: Path, folder: str | None = None) -> None:
        """Uploads a file into a folder of the artifacts."""
        self._add([Artifact(str(path), folder or "")])

    def log_model(self, save: Callable[[Store, str], str]) -> str | None:
        """Stores a model by `save(store, run id)`, and returns its URI."""
        with self._adding():
            return save(self._store, self.run_id)

    def describe(self) -> list[str]:
        """Returns lines with links to the run."""
        return ui_lines(self._store.uri, self._store.experiment_id, self.run_id)

    def watch_machine(self) -> None:
        """Not for a run that has ended."""
        raise NotImplementedError

    def finish(self, status: Status, *, in_haste: bool = False) -> bool:
        """Not for a run that has ended."""
        raise NotImplementedError

    def _add(self, records: Sequence[Record]) -> None:
        with self._adding():
            write(self._store.client, self.run_id, records)

    @contextmanager
    def _adding(self) -> Iterator[None]:
        try:
            yield
        # MLflow, SQLAlchemy, requests and drivers share no base class.
        except Exception as error:
            raise TrackingError(f"could not add to run {self.run_id}: {reason(error)}") from error


def _logged(store: Store, run_id: str) -> dict[str, dict[int, float]]:
    points = {}
    try:
        for key in store.client.get_run(run_id).data.metrics:
            history = store.client.get_metric_history(run_id, key)
            points[key] = {point.step: point.value for point in history}
    except Exception as error:
        raise TrackingError(f"could not read the points of run {run_id}: {reason(error)}") from error
    return points


def _points(step: int, values: Mapping[str, float]) -> list[Record]:
    now = _now_ms()
    points: list[Record] = []
    for name, value in values.items():
        stored = math.nan if math.isinf(value) else float(value)
        points.append(Point(clean_key(name), stored, now, int(step)))
    return points


def _now_ms() -> int:
    return int(time.time() * 1000)

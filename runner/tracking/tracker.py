# ruff: noqa: D102 - trackers override what Tracker documents
"""Trackers that record in MLflow: a run of this process, and one that has ended."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from mlflow.system_metrics.system_metrics_monitor import SystemMetricsMonitor

from runner.errors import TrackingError
from runner.tracking.base import Status, Tracker
from runner.tracking.location import ui_lines
from runner.tracking.mlflow_setup import reason, warn
from runner.tracking.records import POINTS_PER_CALL, Ending, Point, Record
from runner.tracking.run_file import RunFile, sync_command
from runner.tracking.send import is_retryable, write
from runner.tracking.store import Store
from runner.tracking.writer import AsyncWriter, QueuedTracker, Writer


class MlflowTracker(QueuedTracker):
    """Records one run in MLflow, and in the files of `writers`; see `Tracker` for its methods."""

    run_id: str

    def __init__(
        self, store: Store, run_id: str, writers: Sequence[Writer] = (), *, folder: Path, finish_timeout_s: float
    ) -> None:
        """Starts the thread that stores what is logged, and appends it to a file in the run's own folder."""
        self._store = store
        self.run_id = run_id
        self._file = RunFile(folder, run_id, store.uri)
        self._write = partial(write, store.client, run_id)
        self._monitor: SystemMetricsMonitor | None = None
        self._notes: list[str] = []
        queue = AsyncWriter(self._write, self._file, warn, writers=writers)
        super().__init__(writers, finish_timeout_s, queue)

    def watch_machine(self) -> None:
        # A resumed run's points follow those of its earlier processes.
        self._monitor = SystemMetricsMonitor(self.run_id, resume_logging=True, tracking_uri=self._store.uri)
        self._monitor.start()

    def log_model(self, save: Callable[[Store, str], str]) -> str | None:
        # MLflow shows the model with the metrics of its step, which must be stored first.
        self._writer.flush(self._finish_timeout_s)
        try:
            return save(self._store, self.run_id)
        # The run has trained: failing it for its model's entry would throw that away.
        except Exception as error:
            warn(f"could not log the model: {reason(error)}")
            return None

    def logged(self) -> dict[str, dict[int, float]]:
        points = {}
        try:
            for key in self._store.client.get_run(self.run_id).data.metrics:
                history = self._store.client.get_metric_history(self.run_id, key)
                points[key] = {point.step: point.value for point in history}
        except Exception as error:
            raise TrackingError(f"could not read the points of run {self.run_id}: {reason(error)}") from error
        return points

    def describe(self) -> list[str]:
        links = ui_lines(self._store.uri, self._store.experiment_id, self.run_id)
        return [*links, *super().describe(), *self._notes]

    def _end(self, status: Status, remaining: list[Record]) -> bool:
        """Records the status, in the store if it has all points; returns whether nothing is lost."""
        if self._monitor is not None:
            # It asks the store before it ends, which may take as long as a request.
            threading.Thread(target=self._monitor.finish, daemon=True).start()
        writer = self._writer
        has_all_points = not any(isinstance(one, Point) for one in remaining)
        if status == "FINISHED" and remaining and writer.unfiled:
            # A run that has lost records has not finished.
            status = "FAILED"
        ending = Ending(status, int(time.time() * 1000))
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

    def log_model(self, save: Callable[[Store, str], str]) -> str | None:
        with self._adding():
            return save(self._store, self.run_id)

    def describe(self) -> list[str]:
        return ui_lines(self._store.uri, self._store.experiment_id, self.run_id)

    def _add(self, records: Sequence[Record]) -> None:
        size = POINTS_PER_CALL if records and isinstance(records[0], Point) else 1
        with self._adding():
            for start in range(0, len(records), size):
                write(self._store.client, self.run_id, records[start : start + size])

    @contextmanager
    def _adding(self) -> Iterator[None]:
        try:
            yield
        # MLflow, SQLAlchemy, requests and drivers share no base class.
        except Exception as error:
            raise TrackingError(f"could not add to run {self.run_id}: {reason(error)}") from error

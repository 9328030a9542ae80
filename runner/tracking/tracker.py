"""Tracker that records in MLflow."""

from __future__ import annotations

import atexit
import math
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from mlflow.system_metrics.system_metrics_monitor import SystemMetricsMonitor

from runner.config.schema import TrackingConfig
from runner.errors import Interrupted, TrackingError
from runner.host.signals import current
from runner.tracking import page, start
from runner.tracking.base import RunSpec, Status, Tracker
from runner.tracking.location import tracking_uri, ui_lines
from runner.tracking.mlflow_setup import reason, warn
from runner.tracking.records import Artifact, Dataset, Ending, Point, Record, Tag, clean_key
from runner.tracking.run_file import RunFile, sync_command
from runner.tracking.send import FOLDER, MlflowWriter, is_retryable
from runner.tracking.store import Store, open_store
from runner.tracking.writer import AsyncWriter

# The status is tried so often if the store has just accepted everything else; it may fail for a moment.
_STATUS_ATTEMPTS = 3
_STATUS_RETRY_DELAY_S = 0.5
# For the remaining records if this process is about to be ended from outside. The whole record of such an end has 25 s
# (`RECORD_S` in processes/timeouts.py), in which the status and the file must fit too.
_HASTE_S = 15.0
# MLflow's limit for the digest of a dataset.
_DIGEST_LENGTH = 36


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
        self._run_writer = MlflowWriter(store.client, run_id)
        self._writer = AsyncWriter(self._run_writer, self._file, warn)
        self._monitor: SystemMetricsMonitor | None = None
        # Metric name -> the key that MLflow accepts.
        self._keys: dict[str, str] = {}
        # Status in the description that was queued last; empty: `show_page` was not called.
        self._described_status = ""
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
        now = _now_ms()
        self.page.log(values)
        points: list[Record] = []
        for name, value in values.items():
            if name not in self._keys:
                self._keys[name] = clean_key(name)
            stored = math.nan if math.isinf(value) else float(value)
            points.append(Point(self._keys[name], stored, now, int(step)))
        self._writer.add(points)

    def set_tags(self, tags: Mapping[str, str]) -> None:
        """See `Tracker`."""
        self.page.tag(tags)
        self._writer.add([Tag(key, str(value)) for key, value in tags.items()])

    def log_dataset(self, name: str, digest: str, source: str, context: str) -> None:
        """See `Tracker`."""
        self._writer.add([Dataset(name, digest[:_DIGEST_LENGTH], source, context)])

    def log_artifact(self, path: Path, folder: str | None = None) -> None:
        """See `Tracker`."""
        if not path.is_file():
            warn(f"could not record {path}: there is no such file")
            return
        self._writer.add([Artifact(str(path.absolute()), folder or "")])

    def log_model(self, save: Callable[[Store, str], object]) -> None:
        """See `Tracker`."""
        # MLflow shows the model with the metrics of its step, which must be stored first.
        self.flush(self._finish_timeout_s)
        try:
            save(self._store, self.run_id)
        # The run has trained: failing it for its model's entry would throw that away.
        except Exception as error:
            warn(f"could not log the model: {reason(error)}")

    def logged(self) -> dict[str, dict[int, float]]:
        """See `Tracker`."""
        client = self._store.client
        points = {}
        try:
            for key in client.get_run(self.run_id).data.metrics:
                history = client.get_metric_history(self.run_id, key)
                points[key] = {point.step: point.value for point in history}
        except Exception as error:
            raise TrackingError(f"could not read the points of run {self.run_id}: {reason(error)}") from error
        return points

    def flush(self, timeout_s: float) -> bool:
        """See `Tracker`."""
        return self._writer.flush(timeout_s)

    def describe(self) -> list[str]:
        """See `Tracker`."""
        return [*ui_lines(self._store.uri, self._store.experiment_id, self.run_id), *self._notes]

    def show_page(self) -> None:
        """See `Tracker`."""
        self._writer.add([self._description("RUNNING")])

    def _description(self, status: str) -> Tag:
        self._described_status = status
        return Tag(page.TAG, self.page.markdown(status))

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
        if self._described_status:
            self._writer.add([self._description(status)])
        is_drained = False
        try:
            limit = min(self._finish_timeout_s, _HASTE_S) if in_haste else self._finish_timeout_s
            # While somebody waits for the end (a scheduler, a person, another process) the limit is of the whole wait.
            is_drained = self._writer.flush(limit, while_moving=not in_haste and status != "KILLED")
        except (Interrupted, KeyboardInterrupt):
            status = "KILLED"
            raise
        finally:
            # Another signal must not lose what is recorded here.
            with current().deferring():
                is_kept = self._end(status, self._writer.abandon(), attempts=_STATUS_ATTEMPTS if is_drained else 1)
        return is_kept

    def _end(self, status: Status, remaining: list[Record], *, attempts: int) -> bool:
        """Records the status, in the store if it has all points; returns whether nothing is lost."""
        has_all_points = not self._writer.unsent_points and not any(isinstance(one, Point) for one in remaining)
        if status == "FINISHED" and remaining and self._writer.unfiled:
            # A run that has lost records has not finished.
            status = "FAILED"
        ending = Ending(status, _now_ms())
        self._writer.file(ending)
        is_complete = False
        # If the wait for a killed run was cut short, the store may well respond.
        if has_all_points or status == "KILLED":
            is_stored = self._store_ending(ending, attempts)
            is_complete = is_stored and has_all_points and not remaining and not self._writer.rejected
        self._file.close(sent=is_complete)
        if is_complete:
            return True
        count = len(remaining) + self._writer.unsent_points + len(self._writer.rejected)
        note = f"{count:,} records are not in the store"
        if self._writer.unfiled:
            note += f" and are lost, because {self._file.path} can't be written"
        else:
            note += f", but in {self._file.path}; to store them: {sync_command(self._file.path.parent)}"
        self._notes.append(note)
        warn(note)
        return not self._writer.unfiled and not self.lost

    def _store_ending(self, ending: Ending, attempts: int) -> bool:
        if self._described_status not in ("", ending.status):
            # The status itself says it too, so a failure is not a loss.
            with suppress(Exception):
                self._run_writer.write([self._description(ending.status)])
        for attempt in range(attempts):
            time.sleep(_STATUS_RETRY_DELAY_S * attempt)
            try:
                self._run_writer.write([ending])
                return True
            except Exception as error:
                if not is_retryable(error):
                    self._writer.rejected.append(ending)
                    self.lost = (
                        f"the store rejects it; if it was deleted: `mlflow runs restore --run-id {self.run_id}`"
                    )
                    break
        return False


def start_run(
    config: TrackingConfig,
    spec: RunSpec,
    folder: Path,
    root: Path,
    resume_run_id: str | None,
    finish_timeout_s: float,
) -> Tracker:
    """Starts or resumes a run; see `runner.tracking.open_tracker`."""
    store = open_store(tracking_uri(config.uri, root), config.experiment)
    try:
        start.mark_dead_runs(store, warn)
    # Housekeeping must not keep a run from starting.
    except Exception as error:
        warn(f"could not look for dead runs: {reason(error)}")
    # Opening the database may have taken seconds, in which a signal was deferred.
    current().raise_if_requested()
    # A signal between creating the run and having a tracker for it would leave it RUNNING.
    with current().deferring():
        spec = replace(spec, tags={**spec.tags, FOLDER: str(folder)})
        if resume_run_id:
            store = replace(store, experiment_id=start.resume(store, resume_run_id, spec))
            run_id = resume_run_id
        else:
            run_id = start.create(store, spec, root)
        return MlflowTracker(store, run_id, folder=folder, finish_timeout_s=finish_timeout_s)


def _now_ms() -> int:
    return int(time.time() * 1000)

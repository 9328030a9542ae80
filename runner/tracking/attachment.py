"""Adds to a run in an MLflow store that has ended."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from runner.errors import TrackingError
from runner.tracking.base import Attachment
from runner.tracking.location import shown, ui_lines
from runner.tracking.reason import reason
from runner.tracking.records import Point, clean_key
from runner.tracking.send import MlflowWriter
from runner.tracking.store import Store, open_store


class MlflowAttachment(Attachment):
    """Adds to one run at once, without a thread.

    The run has ended, so no training step waits.
    """

    def __init__(self, store: Store, run_id: str) -> None:
        self._store = store
        self._run_id = run_id

    def log_metrics(self, step: int, values: Mapping[str, float]) -> None:
        """Stores a point of each metric; an infinite value as NaN."""
        now = int(time.time() * 1000)
        points = []
        for key, value in values.items():
            if not math.isfinite(value):
                value = math.nan
            points.append(Point(clean_key(key), value, now, step))
        with self._as_tracking_error():
            MlflowWriter(self._store.client, self._run_id).write(points, is_retry=False)

    def log_artifacts(self, paths: Sequence[Path], folder: str) -> None:
        """Uploads files."""
        with self._as_tracking_error():
            for path in paths:
                self._store.client.log_artifact(self._run_id, str(path), folder)

    def log_model(self, save: Callable[[Store, str], str]) -> str:
        """Stores a model."""
        with self._as_tracking_error():
            return save(self._store, self._run_id)

    def describe(self) -> list[str]:
        """Returns links to the run."""
        return ui_lines(self._store.uri, self._store.experiment_id, self._run_id)

    @contextmanager
    def _as_tracking_error(self) -> Iterator[None]:
        try:
            yield
        # MLflow, SQLAlchemy, requests and drivers share no base class.
        except Exception as error:
            raise TrackingError(f"could not add to run {self._run_id}: {reason(error)}") from error


def open_run(uri: str, experiment: str, run_id: str) -> MlflowAttachment:
    """Opens a recorded run by its store's absolute URI.

    See `runner.tracking.attach.attach`.
    """
    store = open_store(uri, experiment)
    try:
        run = store.client.get_run(run_id)
    except Exception as error:
        raise TrackingError(
            f"tracking.uri={shown(uri)} has no run {run_id}; set tracking.uri=<its store>, or tracking=none"
        ) from error
    if run.info.lifecycle_stage != "active":
        raise TrackingError(
            f"run {run_id} was deleted in {shown(uri)}; run `mlflow runs restore --run-id {run_id}`, or set "
            "tracking=none"
        )
    return MlflowAttachment(replace(store, experiment_id=str(run.info.experiment_id)), run_id)

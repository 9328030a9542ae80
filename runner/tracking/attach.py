"""Adds figures, files and models to a run that has ended, at once; its status and times don't change."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from runner.config.schema import TrackingConfig
from runner.errors import TrackingError
from runner.host import stages
from runner.host.late import late
from runner.host.paths import project_root
from runner.tracking.location import shown, tracking_uri, ui_lines
from runner.tracking.reason import reason
from runner.tracking.records import clean_key

if TYPE_CHECKING:
    from runner.tracking import store as stores
    from runner.tracking.store import Store
else:
    stores = late("runner.tracking.store")


class Attachment:
    """Adds to one run; without a store it records nothing (`tracking=none`, or the run was not tracked).

    Its methods raise TrackingError if the store fails.
    """

    def __init__(self, store: Store | None = None, run_id: str = "") -> None:
        self._store = store
        self._run_id = run_id

    def log_metrics(self, step: int, values: Mapping[str, float]) -> None:
        """Stores a point of each metric; an infinite value as NaN."""
        if self._store is not None:
            with self._as_tracking_error():
                for key, value in values.items():
                    stored = value if math.isfinite(value) else math.nan
                    self._store.client.log_metric(self._run_id, clean_key(key), stored, step=step)

    def log_artifacts(self, paths: Sequence[Path], folder: str) -> None:
        """Uploads files into a folder of the run's artifacts."""
        if self._store is not None:
            with self._as_tracking_error():
                for path in paths:
                    self._store.client.log_artifact(self._run_id, str(path), folder)

    def log_model(self, save: Callable[[Store, str], str]) -> str | None:
        """Stores a model by `save(store, run id)`, and returns its URI; None if nothing is recorded."""
        if self._store is None:
            return None
        with self._as_tracking_error():
            return save(self._store, self._run_id)

    def describe(self) -> list[str]:
        """Returns lines with links to the run."""
        if self._store is None:
            return []
        return ui_lines(self._store.uri, self._store.experiment_id, self._run_id)

    @contextmanager
    def _as_tracking_error(self) -> Iterator[None]:
        try:
            yield
        # MLflow, SQLAlchemy, requests and drivers share no base class.
        except Exception as error:
            raise TrackingError(f"could not add to run {self._run_id}: {reason(error)}") from error


def attach(config: TrackingConfig, run_id: str | None) -> Attachment:
    """Opens a recorded run; None: it was not tracked.

    Raises:
      TrackingError: the store can't be used, or has no such run; one line.
    """
    if config.name == "none" or run_id is None:
        return Attachment()
    uri = tracking_uri(config.uri, project_root())
    with stages.stage("opening the run's record in MLflow"):
        store = stores.open_store(uri, config.experiment)
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
    return Attachment(replace(store, experiment_id=str(run.info.experiment_id)), run_id)

"""Adds metrics, files and models to a run that has ended, at once; its status and times don't change."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from runner.config.schema import TrackingConfig
from runner.errors import TrackingError
from runner.host import stages
from runner.host.late import late
from runner.tracking.location import shown, ui_lines
from runner.tracking.mlflow_setup import reason
from runner.tracking.records import clean_key

if TYPE_CHECKING:
    from runner.tracking import store as stores
    from runner.tracking.store import Store
else:
    stores = late("runner.tracking.store")


@dataclass(frozen=True)
class Attachment:
    """A run; without a store nothing is recorded (`tracking=none`, or the run was not tracked).

    Its methods raise TrackingError if the store fails.
    """

    store: Store | None = None
    run_id: str = ""

    def add(self, step: int, metrics: Mapping[str, float], files: Sequence[Path], folder: str) -> None:
        """Stores a point of each metric, an infinite one as NaN, and uploads files into a folder of the artifacts."""
        if self.store is None:
            return
        client = self.store.client
        with self._adding():
            for key, value in metrics.items():
                stored = value if math.isfinite(value) else math.nan
                client.log_metric(self.run_id, clean_key(key), stored, step=step)
            for path in files:
                client.log_artifact(self.run_id, str(path), folder)

    def log_model(self, save: Callable[[Store, str], str]) -> str | None:
        """Stores a model by `save(store, run id)`, and returns its URI; None if nothing is recorded."""
        if self.store is None:
            return None
        with self._adding():
            return save(self.store, self.run_id)

    def describe(self) -> list[str]:
        """Returns lines with links to the run."""
        if self.store is None:
            return []
        return ui_lines(self.store.uri, self.store.experiment_id, self.run_id)

    @contextmanager
    def _adding(self) -> Iterator[None]:
        try:
            yield
        # MLflow, SQLAlchemy, requests and drivers share no base class.
        except Exception as error:
            raise TrackingError(f"could not add to run {self.run_id}: {reason(error)}") from error


def attach(config: TrackingConfig, run_id: str | None) -> Attachment:
    """Opens a recorded run; None: it was not tracked.

    Raises:
      TrackingError: the store can't be used, or has no such run; one line.
    """
    if config.name == "none" or run_id is None:
        return Attachment()
    with stages.stage("opening the run's record in MLflow"):
        store = stores.open_tracking(config)
        try:
            run = store.client.get_run(run_id)
            if run.info.lifecycle_stage != "active":
                raise LookupError(f"it was deleted: run `mlflow runs restore --run-id {run_id}`")
        except Exception as error:
            raise TrackingError(
                f"tracking.uri={shown(store.uri)} has no run {run_id}; set tracking.uri=<its store>, or tracking=none "
                f"({reason(error)})"
            ) from error
    return Attachment(replace(store, experiment_id=str(run.info.experiment_id)), run_id)

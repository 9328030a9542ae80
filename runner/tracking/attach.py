"""Adds figures, files and models to a run that has ended; its status and its times stay as they are."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Protocol

from runner.config.errors import TrackingError
from runner.config.schema import TrackingConfig
from runner.host.paths import project_root
from runner.tracking.location import shown, tracking_uri, ui_lines
from runner.tracking.records import Point, clean_key
from runner.tracking.store import Store


class Attachment(Protocol):
    """A recorded run that more is written to, at once."""

    def log_metrics(self, step: int, values: Mapping[str, float]) -> None:
        """Stores a point of each metric.

        Raises:
          TrackingError: the store failed.
        """

    def log_artifacts(self, paths: Sequence[Path], folder: str) -> None:
        """Uploads files into a folder of the run's artifacts.

        Raises:
          TrackingError: the store failed.
        """

    def log_model(self, save: Callable[[Store, str], str]) -> str | None:
        """Stores a model.

        Args:
          save: (store, run id) -> the model's URI.

        Returns:
          The URI; None where nothing is recorded.

        Raises:
          TrackingError: the store failed.
        """

    def describe(self) -> list[str]:
        """Returns lines that say where the run can be looked at."""


class NoAttachment:
    """Records nothing: the run was not tracked, or `tracking=none`."""

    def log_metrics(self, step: int, values: Mapping[str, float]) -> None:
        """Does nothing."""

    def log_artifacts(self, paths: Sequence[Path], folder: str) -> None:
        """Does nothing."""

    def log_model(self, save: Callable[[Store, str], str]) -> str | None:
        """Does nothing."""
        del save
        return None

    def describe(self) -> list[str]:
        """Returns no line."""
        return []


class StoredRun:
    """A run in an MLflow store; see `Attachment`."""

    def __init__(self, store: Store, run_id: str) -> None:
        self._store, self._run_id = store, run_id

    def log_metrics(self, step: int, values: Mapping[str, float]) -> None:
        """Stores a point of each metric; an infinite value as NaN."""
        from runner.tracking.send import Sender

        now = int(time.time() * 1000)
        points = [
            Point(clean_key(key), value if math.isfinite(value) else math.nan, now, step)
            for key, value in values.items()
        ]
        self._do(lambda: Sender(self._store.client, self._run_id)([*points], unsure=False))

    def log_artifacts(self, paths: Sequence[Path], folder: str) -> None:
        """Uploads files."""
        for path in paths:
            self._do(partial(self._store.client.log_artifact, self._run_id, str(path), folder))

    def log_model(self, save: Callable[[Store, str], str]) -> str | None:
        """Stores a model."""
        found: list[str] = []
        self._do(lambda: found.append(save(self._store, self._run_id)))
        return found[0]

    def describe(self) -> list[str]:
        """Returns where the run can be looked at."""
        return ui_lines(self._store.uri, self._store.experiment_id, self._run_id)

    def _do(self, action: Callable[[], object]) -> None:
        from runner.tracking.reason import reason

        try:
            action()
        except Exception as error:  # MLflow, SQLAlchemy, requests and drivers share no base class
            raise TrackingError(f"run {self._run_id} can't be added to: {reason(error)}") from error


def attach(config: TrackingConfig, run_id: str | None, root: Path | None = None) -> Attachment:
    """Opens a recorded run.

    Args:
      config: the `tracking` group.
      run_id: the run's id in the store; None for a run that was not tracked.
      root: folder whose `outputs` holds the default store; null: the project's.

    Raises:
      TrackingError: the store can't be used, or has no such run; one line.
    """
    if config.name == "none" or run_id is None:
        return NoAttachment()
    from runner.tracking.store import open_store

    uri = tracking_uri(config.uri, root or project_root())
    store = open_store(uri, config.experiment)
    try:
        run = store.client.get_run(run_id)
    except Exception as error:
        raise TrackingError(
            f"tracking.uri={shown(uri)} has no run {run_id}; set tracking.uri=<where it is recorded>, or tracking=none"
        ) from error
    if run.info.lifecycle_stage != "active":
        raise TrackingError(
            f"run {run_id} was deleted in {shown(uri)}; `mlflow runs restore --run-id {run_id}`, or tracking=none"
        )
    return StoredRun(replace(store, experiment_id=str(run.info.experiment_id)), run_id)

"""Adds figures, files and models to a run that has ended; its status and its times stay as they are."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from runner.config.schema import TrackingConfig
from runner.host.late import late
from runner.host.paths import project_root
from runner.tracking.location import tracking_uri

if TYPE_CHECKING:
    from runner.tracking import stored
    from runner.tracking.store import Store
else:
    stored = late("runner.tracking.stored")


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
    return stored.stored_run(tracking_uri(config.uri, root or project_root()), config.experiment, run_id)

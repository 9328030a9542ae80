"""Finds the parent runs of sweeps."""

from __future__ import annotations

from collections.abc import Sequence

from mlflow.entities import Run

from runner.config.schema import TrackingConfig
from runner.errors import ConfigError
from runner.host.paths import project_root
from runner.tracking.location import tracking_uri
from runner.tracking.named import LATEST
from runner.tracking.store import Store, open_store, search

KIND_TAG = "runner.kind"
# Sweeps that an error lists.
_SUGGESTIONS = 3


def open_tracking(config: TrackingConfig) -> Store:
    """Opens the store that the `tracking` group names; raises TrackingError."""
    return open_store(tracking_uri(config.uri, project_root()), config.experiment)


def find(store: Store, which: str, experiments: Sequence[str] = ()) -> Run:
    """Finds the newest sweep of a run id, the start of one, a run name, or `latest`; raises ConfigError.

    It searches the experiments of these ids; none: all of them.
    """
    runs = search(store, experiments or None, f"tags.`{KIND_TAG}` = 'sweep'")
    for run in runs:
        if which == LATEST or run.info.run_id.startswith(which) or run.info.run_name == which:
            return run
    latest = ", ".join(f"{run.info.run_id} ({run.info.run_name})" for run in runs[:_SUGGESTIONS])
    raise ConfigError(f"sweep {which}: no such sweep in this store; the latest are: {latest or 'none yet'}")

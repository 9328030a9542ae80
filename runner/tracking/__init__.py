"""Records runs in MLflow.

Importing this package prepares for MLflow without importing it; opening a tracker does.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from runner.config.schema import TrackingConfig
from runner.host import stages
from runner.host.late import late
from runner.host.paths import project_root
from runner.tracking.base import Status, Tracker
from runner.tracking.location import default_uri
from runner.tracking.mlflow_import import set_environment

if TYPE_CHECKING:
    from runner.tracking import start, tracker
else:
    start = late("runner.tracking.start")
    tracker = late("runner.tracking.tracker")

__all__ = ["Status", "Tracker", "default_uri", "open_tracker"]

set_environment()


def open_tracker(
    config: TrackingConfig,
    *,
    run_name: str,
    params: Mapping[str, object],
    tags: Mapping[str, str],
    listed: Mapping[str, object] | None = None,
    resume_run_id: str | None = None,
    parent_run_id: str | None = None,
    folder: Path,
    root: Path | None = None,
    finish_timeout_s: float = 30.0,
) -> Tracker:
    """Starts or resumes a run in the store that the config names; the caller must `finish` the tracker.

    Before that, it marks runs of this machine as KILLED if their process is gone.

    Args:
      config: whose `run_name` and `tags` come before those given here.
      run_name: the run's name.
      params: flat, dotted key to value, such as `dataset.batch_size: 128`.
      tags: more tags.
      listed: the params that the run's page lists; null: all.
      resume_run_id: a run to continue; its status becomes RUNNING again.
      parent_run_id: the run that the new one is nested in.
      folder: the run's own, which gets the file of its records.
      root: folder whose `outputs` has the default store; null: the project's.
      finish_timeout_s: `finish` gives up if the store has accepted nothing for so long.

    Raises:
      TrackingError: the server or the store can't be used; one line.
    """
    if config.name == "none":
        return Tracker()
    with stages.stage("opening the run's record in MLflow"):
        return tracker.start_run(
            config,
            start.RunSpec(config.run_name or run_name, params, {**tags, **config.tags}, parent_run_id, listed),
            root=root or project_root(),
            folder=folder,
            resume_run_id=resume_run_id,
            finish_timeout_s=finish_timeout_s,
        )

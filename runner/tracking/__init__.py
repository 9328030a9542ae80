"""Records runs in MLflow, TensorBoard and W&B.

Importing this package prepares for MLflow without importing it; opening a tracker that writes to it does.
"""

from __future__ import annotations

from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from runner.config.schema import TrackingConfig
from runner.errors import TrackingError
from runner.host import stages
from runner.host.late import late
from runner.host.paths import project_root
from runner.host.signals import current
from runner.tracking.base import FOLDER, RunSpec, Status, Tracker
from runner.tracking.location import MLFLOW, experiment_name
from runner.tracking.mlflow_setup import reason, set_environment, warn

if TYPE_CHECKING:
    from runner.tracking import start, store, tracker, writer
else:
    start = late("runner.tracking.start")
    store = late("runner.tracking.store")
    tracker = late("runner.tracking.tracker")
    writer = late("runner.tracking.writer")

__all__ = ["RunSpec", "Status", "Tracker", "attach", "open_tracker"]

set_environment()


def open_tracker(
    config: TrackingConfig,
    spec: RunSpec,
    folder: Path,
    *,
    resume_run_id: str | None = None,
    root: Path | None = None,
    finish_timeout_s: float = 30.0,
) -> Tracker:
    """Starts or resumes a run in the places that the config names; the caller must `finish` the tracker.

    Before that, it marks runs of this machine as KILLED in MLflow if their process is gone.

    Args:
      config: whose `run_name` and `tags` come before those of `spec`.
      folder: the run's own, which gets the file of its records.
      root: folder whose `outputs` has the default store; null: the project's.
      finish_timeout_s: `finish` gives up if the store has accepted nothing for so long.
    """
    if not config.writers:
        return Tracker()
    name = config.run_name or spec.name
    tags = {**spec.tags, **config.tags, FOLDER: str(folder)}
    experiment = experiment_name(config.experiment)
    spec = replace(spec, name=name, tags=tags, experiment=experiment, identity=spec.identity or folder.name)
    root = root or project_root()
    if MLFLOW not in config.writers:
        # Nothing tells which points an earlier process of the run has logged.
        files = _files(config, replace(spec, repeats=spec.identity != folder.name), root)
        return writer.QueuedTracker(files, finish_timeout_s)
    with stages.stage("opening the run's record in MLflow"):
        opened = store.open_tracking(config, root)
        try:
            start.mark_dead_runs(opened, warn)
        # Housekeeping must not keep a run from starting.
        except Exception as error:
            warn(f"could not look for dead runs: {reason(error)}")
        # Opening the database may have taken seconds, in which a signal was deferred.
        current().raise_if_requested()
        given_name = config.run_name or ""
        # A signal between creating the run and having a tracker for it would leave it RUNNING.
        with current().deferring():
            if resume_run_id is None:
                run_id = start.create(opened, spec, root)
                given_name = name
            else:
                run_id = resume_run_id
                opened = replace(opened, experiment_id=start.resume(opened, run_id, spec))
            try:
                files = _files(config, replace(spec, identity=run_id), root)
            except TrackingError:
                opened.client.set_terminated(run_id, "FAILED")
                raise
            found = tracker.MlflowTracker(opened, run_id, files, folder=folder, finish_timeout_s=finish_timeout_s)
            found.run_name = given_name
            return found


def _files(config: TrackingConfig, spec: RunSpec, root: Path) -> list[writer.Writer]:
    """Opens the places beside MLflow, each of which is a module of its name."""
    opened = []
    for name in config.writers:
        if name != MLFLOW:
            try:
                opened.append(import_module(f"runner.tracking.{name}").FileWriter(spec, root))
            except Exception as error:
                raise TrackingError(f"tracking.writers={name} can't be used: {reason(error)}") from error
    return opened


def attach(config: TrackingConfig, run_id: str | None) -> Tracker:
    """Opens a run that has ended, to add to it, see `Attachment`; None: it was not tracked, so nothing is recorded."""
    if MLFLOW not in config.writers or run_id is None:
        return Tracker()
    with stages.stage("opening the run's record in MLflow"):
        opened = store.open_tracking(config)
        try:
            run = opened.client.get_run(run_id)
            if run.info.lifecycle_stage != "active":
                raise LookupError(f"it was deleted: run `mlflow runs restore --run-id {run_id}`")
        except Exception as error:
            raise store.unusable(opened.uri, f"it has no run {run_id} ({reason(error)})") from error
    return tracker.Attachment(replace(opened, experiment_id=str(run.info.experiment_id)), run_id)

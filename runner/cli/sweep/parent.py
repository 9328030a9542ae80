"""The sweep's own run in MLflow, the parent of its jobs' runs."""

from __future__ import annotations

import contextlib
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from mlflow.entities import Run

from runner.cli.sweep.settings import Settings
from runner.cluster.membership import VARIED
from runner.host.paths import project_root
from runner.tracking import start
from runner.tracking.base import RunSpec, Status
from runner.tracking.mlflow_setup import reason, warn
from runner.tracking.records import clean_tags
from runner.tracking.start import mark_dead_runs
from runner.tracking.store import KIND_TAG, Store, find_sweep, open_tracking, search

_FOLDER = "sweep"  # of its artifacts
# What identifies a job's run: the keys and values that its sweep varies. Two short names may be alike.
Values = frozenset[tuple[str, str]]


@dataclass(frozen=True)
class Parent:
    """An open parent run: where it is, its id, and the command line that started or resumed it."""

    store: Store
    run_id: str
    command: str

    def children(self) -> list[Run]:
        """Returns the runs of the sweep's jobs, newest first; those whose process is gone are no longer RUNNING."""
        mark_dead_runs(self.store, lambda _line: None)
        return search(self.store, [self.store.experiment_id], f"tags.mlflow.parentRunId = '{self.run_id}'")

    def finish(
        self,
        status: Status,
        tags: Mapping[str, str],
        metrics: Mapping[str, float],
        files: Sequence[Path],
    ) -> None:
        """Stores results and status; an error is a warning."""
        client = self.store.client
        try:
            for path in files:
                client.log_artifact(self.run_id, str(path), _FOLDER)
            for key, value in metrics.items():
                client.log_metric(self.run_id, key, value)
            for tag, content in clean_tags(tags).items():
                client.set_tag(self.run_id, tag, content)
        except Exception as error:
            warn(f"the sweep's results are not all stored: {reason(error)}")
        try:
            client.set_terminated(self.run_id, status)
        except Exception as error:
            warn(f"the sweep's status is not stored: {reason(error)}")


def values_of(tags: Mapping[str, str]) -> Values:
    """Returns what identifies a run in its sweep, given its tags, stored or not."""
    return frozenset(clean_tags({key: value for key, value in tags.items() if key.startswith(VARIED)}).items())


def open_parent(settings: Settings, arguments: Sequence[str]) -> Parent:
    """Makes the sweep's run, or resumes the one of `sweep.resume`; its status is RUNNING.

    Raises:
      ConfigError: there is no such sweep.
      TrackingError: the store can't be used.
    """
    store = open_tracking(settings.tracking)
    with contextlib.suppress(Exception):  # housekeeping must not stop a sweep
        mark_dead_runs(store, warn)
    params = {key.lstrip("+"): values for key, values in settings.varied.items()}
    spec = RunSpec(settings.name, params, {KIND_TAG: "sweep", **settings.tracking.tags})
    command = shlex.join(["python", "-m", settings.module, *arguments])
    if settings.group.resume is None:
        run_id = start.create(store, replace(spec, description=f"`{command}`"), project_root())
    else:
        run_id = find_sweep(store, settings.group.resume, [store.experiment_id]).info.run_id
        # Without params: those of the first start can't be changed.
        start.resume(store, run_id, replace(spec, params={}))
    return Parent(store, run_id, command)

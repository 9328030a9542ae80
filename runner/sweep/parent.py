"""The sweep's own run in MLflow: made before the first job, finished however the sweep ends."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from mlflow.entities import Run

from runner.config.errors import TrackingError
from runner.config.schema import TrackingConfig
from runner.host.paths import project_root
from runner.sweep.identity import CODE_TAG, CONFIG_TAG
from runner.sweep.member import JOB_TAG
from runner.tracking import start
from runner.tracking.base import Status
from runner.tracking.dead import NOTE, mark_dead_runs
from runner.tracking.location import ui_lines
from runner.tracking.mlflow_import import warn
from runner.tracking.reason import reason
from runner.tracking.records import TAG_LIMIT, cut
from runner.tracking.store import Store, search
from runner.tracking.sweeps import KIND_TAG, open_tracking
from runner.training.checkpoint import signature

ARGV_TAG, _SIGNATURE_TAG = "runner.sweep.argv", "runner.sweep.signature"
_SIGNED = "sweep"  # what the signature is of, beside the command line


@dataclass(frozen=True)
class Parent:
    """An open parent run.

    Attributes:
      store: where it is.
      run_id: its id.
    """

    store: Store
    run_id: str

    def children(self) -> list[Run]:
        """Returns the runs of the sweep's jobs, newest first."""
        return search(self.store, [self.store.experiment_id], f"tags.mlflow.parentRunId = '{self.run_id}'")

    def covered(self, code: str) -> dict[str, Run]:
        """Returns every finished run of the experiment under this code, by the hash of its config."""
        under = f"attributes.status = 'FINISHED' AND tags.`{CODE_TAG}` = '{code}'"
        runs = search(self.store, [self.store.experiment_id], under)
        return {run.data.tags[CONFIG_TAG]: run for run in reversed(runs) if CONFIG_TAG in run.data.tags}

    def mark_killed(self, notes: Mapping[str, str]) -> None:
        """Marks children that still say RUNNING although their job has ended.

        Args:
          notes: job number to why it ended, of the jobs that have.
        """
        mark_dead_runs(self.store, lambda _line: None)
        for run in self.children():
            number = run.data.tags.get(JOB_TAG, "")
            if run.info.status == "RUNNING" and number in notes:
                self.store.client.set_tag(run.info.run_id, NOTE, f"ended without a word: {notes[number]}")
                self.store.client.set_terminated(run.info.run_id, "KILLED")

    def tag_child(self, run_id: str, tags: Mapping[str, str]) -> None:
        """Sets tags of one of the sweep's runs."""
        for key, value in tags.items():
            self.store.client.set_tag(run_id, key, cut(value, TAG_LIMIT))

    def measure_child(self, run_id: str, metrics: Mapping[str, float]) -> None:
        """Logs figures of one of the sweep's runs that only the sweep knows."""
        for key, value in metrics.items():
            self.store.client.log_metric(run_id, key, value)

    def finish(
        self, status: Status, tags: Mapping[str, str], metrics: Mapping[str, float], files: Sequence[Path]
    ) -> None:
        """Stores what came out and the status; trouble is a line on stderr."""
        client = self.store.client
        try:
            for path in files:
                client.log_artifact(self.run_id, str(path), "sweep")
            for key, value in metrics.items():
                client.log_metric(self.run_id, key, value)
            self.tag_child(self.run_id, tags)
        except Exception as error:
            warn(f"the sweep's results are not all stored: {reason(error)}")
        for attempt in range(3):
            try:
                client.set_terminated(self.run_id, status)
                return
            except Exception as error:
                warn(f"the sweep's status is not stored: {reason(error)}")
                time.sleep(attempt)

    def describe(self) -> list[str]:
        """Returns where the sweep can be looked at."""
        return ui_lines(self.store.uri, self.store.experiment_id, self.run_id)


def open_parent(
    config: TrackingConfig, *, name: str, params: Mapping[str, object], tags: Mapping[str, str], resume: str | None
) -> Parent:
    """Makes the sweep's run, or takes one up again.

    Args:
      config: the `tracking` group.
      name: the run's name.
      params: of the sweep: what varies, and over what.
      tags: more tags.
      resume: the run to take up again.

    Returns:
      The open run, whose status is RUNNING.

    Raises:
      TrackingError: the store can't be used.
    """
    store = open_tracking(config)
    with contextlib.suppress(Exception):  # housekeeping must not stop a sweep
        mark_dead_runs(store, warn)
    spec = start.RunSpec(name, params, {**tags, KIND_TAG: "sweep", **config.tags}, None)
    if resume is None:
        return Parent(store, start.create(store, spec, project_root()))
    store = replace(store, experiment_id=start.resume(store, resume, replace(spec, params={})))
    return Parent(store, resume)


def argv_tags(arguments: Sequence[str]) -> dict[str, str]:
    """Returns the tags that hold a sweep's command line, and this project's signature of it."""
    return {ARGV_TAG: json.dumps(arguments), _SIGNATURE_TAG: signature.sign(_SIGNED, arguments)}


def is_own(run: Run) -> bool:
    """Returns whether this project recorded a sweep's command line; whoever can write to the store can write tags."""
    record = {"overrides": recorded_arguments(run), signature.FIELD: run.data.tags.get(_SIGNATURE_TAG, "")}
    return signature.is_own(_SIGNED, record)


def recorded_arguments(run: Run) -> list[str]:
    """Returns the command line that a sweep was started with.

    Raises:
      TrackingError: it was too long to be recorded.
    """
    try:
        return [str(one) for one in json.loads(run.data.tags.get(ARGV_TAG, ""))]
    except ValueError as error:
        raise TrackingError(f"sweep {run.info.run_id} has no readable command line; type it again in full") from error

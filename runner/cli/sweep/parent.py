"""The sweep's own run in MLflow, the parent of its jobs' runs."""

from __future__ import annotations

import contextlib
import json
import shlex
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import quote

from mlflow.entities import Run

from runner.config.schema import TrackingConfig
from runner.errors import TrackingError
from runner.host.folders import is_own
from runner.host.paths import project_root, shown
from runner.tracking import page, start
from runner.tracking.base import Status
from runner.tracking.dead_runs import NOTE, mark_dead_runs
from runner.tracking.hidden import tag_key, tags_of
from runner.tracking.location import ui_lines
from runner.tracking.member import (
    JOB_TAG,
    PARENT_FILE,
)
from runner.tracking.mlflow_import import warn
from runner.tracking.reason import reason
from runner.tracking.records import TAG_LIMIT, cut
from runner.tracking.store import Store, search
from runner.tracking.sweeps import KIND_TAG, open_tracking

ARGV_TAG = "runner.sweep.argv"
FOLDER_TAG = "runner.sweep.folder"
_FOLDER = "sweep"  # of its artifacts
_MOST_COMPARED = 20  # runs on MLflow's page that compares them: more are no longer readable, nor is the address
_ATTEMPTS = 3  # to store the final status, a second apart and then two


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

    def mark_killed(self, notes: Mapping[str, str]) -> None:
        """Marks children as KILLED that are still RUNNING although their job has ended.

        Args:
          notes: job number to why it ended, of the jobs that have.
        """
        mark_dead_runs(self.store, lambda _line: None)
        for run in self.children():
            number = tags_of(run.data.tags).get(JOB_TAG, "")
            if run.info.status == "RUNNING" and number in notes:
                self.store.client.set_tag(run.info.run_id, NOTE, f"ended without recording it: {notes[number]}")
                self.store.client.set_terminated(run.info.run_id, "KILLED")

    def tag_child(self, run_id: str, tags: Mapping[str, str]) -> None:
        """Sets tags of one of the sweep's runs."""
        for key, value in tags.items():
            self.store.client.set_tag(run_id, tag_key(key), cut(value, TAG_LIMIT))

    def finish(
        self, status: Status, tags: Mapping[str, str], metrics: Mapping[str, float], files: Sequence[Path]
    ) -> None:
        """Stores results and status; an error is a warning."""
        client = self.store.client
        try:
            for path in files:
                client.log_artifact(self.run_id, str(path), _FOLDER)
            for key, value in metrics.items():
                client.log_metric(self.run_id, key, value)
            self.tag_child(self.run_id, tags)
        except Exception as error:
            warn(f"the sweep's results are not all stored: {reason(error)}")
        for attempt in range(_ATTEMPTS):
            try:
                client.set_terminated(self.run_id, status)
                return
            except Exception as error:
                warn(f"the sweep's status is not stored: {reason(error)}")
                time.sleep(attempt)

    def tell(self, status: Status, result: str, parts: Sequence[str]) -> None:
        """Stores the sweep's description; an error is a warning.

        Args:
          status: how it ended.
          result: in a few words.
          parts: the rest of it, in Markdown.
        """
        client = self.store.client
        try:
            run = client.get_run(self.run_id)
            links = [self._comparison(), self._pictures()]
            first, *command = _first_part(status, recorded_arguments(run), result).split("\n\n")
            text = "\n\n".join([first, *parts, *filter(None, links), *command])
            description = page.merged(text, run.data.tags.get(page.TAG))
            client.set_tag(self.run_id, page.TAG, cut(description, TAG_LIMIT))
        except Exception as error:
            warn(f"the sweep's description is not stored: {reason(error)}")

    def _pictures(self) -> str:
        """Returns links to the files of the sweep's run, in Markdown."""
        address = self.address(self.run_id)
        links = []
        for artifact in self.store.client.list_artifacts(self.run_id, _FOLDER):
            name = artifact.path.removeprefix(f"{_FOLDER}/")
            links.append(f"[{name}]({address}/artifacts/{artifact.path})")
        return ", ".join(links)

    def _comparison(self) -> str:
        """Returns a link to MLflow's page that compares the jobs' runs; empty where they are too many."""
        ids = [run.info.run_id for run in reversed(self.children())]
        if not 1 < len(ids) <= _MOST_COMPARED:
            return ""
        runs = quote(json.dumps(ids))
        experiments = quote(json.dumps([self.store.experiment_id]))
        return f"[compare its runs](#/compare-runs?runs={runs}&experiments={experiments})"

    def address(self, run_id: str) -> str:
        """Returns the address of a run's page, as links on that server write it."""
        return f"#/experiments/{self.store.experiment_id}/runs/{run_id}"

    def describe(self) -> list[str]:
        """Returns the lines that say where the sweep can be seen."""
        return ui_lines(self.store.uri, self.store.experiment_id, self.run_id)


def open_parent(
    config: TrackingConfig, *, name: str, params: Mapping[str, object], tags: Mapping[str, str], resume: str | None
) -> Parent:
    """Makes the sweep's run, or resumes one.

    Args:
      config: the `tracking` group.
      name: the run's name.
      params: of the sweep: what varies, and over what.
      tags: more tags.
      resume: id of the run to resume; None: a new one.

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
        description = page.merged(_first_part("RUNNING", json.loads(tags.get(ARGV_TAG, "[]"))), None)
        described = replace(spec, tags={page.TAG: description, **spec.tags})
        return Parent(store, start.create(store, described, project_root()))
    # Without params: those of the first start can't be changed.
    experiment_id = start.resume(store, resume, replace(spec, params={}))
    return Parent(replace(store, experiment_id=experiment_id), resume)


def _first_part(status: str, arguments: Sequence[str], result: str = "") -> str:
    """Returns the first part of the sweep's description."""
    command = shlex.join(["python", "-m", "runner", *arguments])
    return page.Page(command=command, ended=result).markdown(status).strip()


def why_foreign(run: Run) -> str:
    """Returns why a sweep's command line is not this user's own: anyone with access to the store can write tags.

    It is the user's own if the sweep's folder has it too.
    """
    path = Path(tags_of(run.data.tags).get(FOLDER_TAG, "")) / PARENT_FILE
    try:
        content = json.loads(path.read_text())
        if not is_own(path.lstat()):
            return f"{shown(path)} belongs to another user, or can be written by others"
        is_same = (content["run_id"], content["arguments"]) == (run.info.run_id, recorded_arguments(run))
    except (OSError, ValueError, KeyError, TypeError):
        return f"{shown(path)} can't be read"
    return "" if is_same else f"{shown(path)} has another one"


def recorded_arguments(run: Run) -> list[str]:
    """Returns the command line that a sweep was started with.

    Raises:
      TrackingError: it was too long to be recorded.
    """
    try:
        arguments = json.loads(tags_of(run.data.tags).get(ARGV_TAG, ""))
        return [str(argument) for argument in arguments]
    except ValueError as error:
        raise TrackingError(f"sweep {run.info.run_id} has no readable command line; type all of it again") from error

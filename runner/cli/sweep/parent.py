"""The sweep's own run in MLflow, the parent of its jobs' runs."""

from __future__ import annotations

import contextlib
import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from mlflow.entities import Run

from runner.cli.sweep.settings import Settings
from runner.errors import TrackingError
from runner.host.folders import is_own
from runner.host.paths import project_root, shown
from runner.tracking import page, start
from runner.tracking.base import Status
from runner.tracking.dead_runs import mark_dead_runs
from runner.tracking.hidden import tag_key, tags_of
from runner.tracking.location import ui_lines
from runner.tracking.mlflow_import import warn
from runner.tracking.reason import reason
from runner.tracking.records import TAG_LIMIT, cut
from runner.tracking.store import Store, search
from runner.tracking.sweeps import KIND_TAG, open_tracking

ARGV_TAG = "runner.sweep.argv"
FOLDER_TAG = "runner.sweep.folder"
PARENT_FILE = "parent.json"
_FOLDER = "sweep"  # of its artifacts


@dataclass(frozen=True)
class Parent:
    """An open parent run: where it is, and its id."""

    store: Store
    run_id: str

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
        description: Sequence[str],
    ) -> None:
        """Stores results, status and description, which is parts in Markdown; an error is a warning."""
        client = self.store.client
        try:
            for path in files:
                client.log_artifact(self.run_id, str(path), _FOLDER)
            for key, value in metrics.items():
                client.log_metric(self.run_id, key, value)
            run = client.get_run(self.run_id)
            own = _page(recorded_arguments(run), tags["runner.sweep.result"]).markdown(status)
            first, *command = own.split("\n\n")
            text = page.merged("\n\n".join([first, *description, *command]), run.data.tags.get(page.TAG))
            for tag, content in {**tags, page.TAG: text}.items():
                client.set_tag(self.run_id, tag_key(tag), cut(content, TAG_LIMIT))
        except Exception as error:
            warn(f"the sweep's results are not all stored: {reason(error)}")
        try:
            client.set_terminated(self.run_id, status)
        except Exception as error:
            warn(f"the sweep's status is not stored: {reason(error)}")

    def address(self, run_id: str) -> str:
        """Returns the address of a run's page, as links on that server write it."""
        return f"#/experiments/{self.store.experiment_id}/runs/{run_id}"

    def describe(self) -> list[str]:
        """Returns the lines that say where the sweep can be seen."""
        return ui_lines(self.store.uri, self.store.experiment_id, self.run_id)


def _page(arguments: Sequence[str], ended: str = "") -> page.Page:
    return page.Page(command=shlex.join(["python", "-m", "runner", *arguments]), ended=ended)


def open_parent(settings: Settings, arguments: Sequence[str]) -> Parent:
    """Makes the sweep's run, or resumes the one of `sweep.resume`; its status is RUNNING.

    Raises:
      TrackingError: the store can't be used.
    """
    store = open_tracking(settings.tracking)
    with contextlib.suppress(Exception):  # housekeeping must not stop a sweep
        mark_dead_runs(store, warn)
    params = {key.lstrip("+"): values for key, values in settings.varied.items()}
    tags = {ARGV_TAG: json.dumps(arguments), FOLDER_TAG: str(settings.folder), KIND_TAG: "sweep"}
    spec = start.RunSpec(settings.name, params, {**tags, **settings.tracking.tags}, None)
    run_id = settings.group.resume
    if run_id is None:
        description = page.merged(_page(arguments).markdown("RUNNING").strip(), None)
        described = replace(spec, tags={page.TAG: description, **spec.tags})
        run_id = start.create(store, described, project_root())
    else:
        # Without params: those of the first start can't be changed.
        store = replace(store, experiment_id=start.resume(store, run_id, replace(spec, params={})))
    file = settings.folder / PARENT_FILE
    file.write_text(json.dumps({"run_id": run_id, "arguments": arguments}))
    # Whatever the umask is: the command line in it is trusted.
    file.chmod(0o644)
    return Parent(store, run_id)


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

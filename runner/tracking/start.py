"""Creates a run in an open store, or resumes one."""

from __future__ import annotations

import getpass
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import starmap
from pathlib import Path

from mlflow import MlflowClient
from mlflow.entities import Param

from runner.errors import TrackingError
from runner.host import session
from runner.tracking import process
from runner.tracking.dead_runs import NOTE
from runner.tracking.hidden import PARAMS, packed, params_of, tag_key, tags_of
from runner.tracking.location import shown
from runner.tracking.mlflow_import import warn
from runner.tracking.reason import reason
from runner.tracking.records import TAG_LIMIT, clean_params, cut
from runner.tracking.store import Store
from runner.tracking.sync import send_of_run

# MLflow rejects a `log_batch` of more params.
_PARAMS_PER_CALL = 100
_PARENT_TAG = "mlflow.parentRunId"
_RESUMED = "resumed."
_RUN_NAME = "tracking.run_name"
# A file system that hangs must not keep a run from starting: the tags of git are only information.
_GIT_TIMEOUT_S = 5


@dataclass(frozen=True)
class RunSpec:
    """The record of a new or resumed run.

    Attributes:
      name: run name.
      params: the config, flat.
      tags: the run's tags, without those that every run gets.
      parent_run_id: the run that it is nested in.
      listed: the params that its page lists; null: all.
    """

    name: str
    params: Mapping[str, object]
    tags: Mapping[str, str]
    parent_run_id: str | None
    listed: Mapping[str, object] | None = None

    def stored(self) -> tuple[dict[str, str], dict[str, str]]:
        """Returns the params to store and the tag that has the whole config.

        There is no tag if the params are all of it.
        """
        params = clean_params(self.params)
        if self.listed is None:
            return params, {}
        whole = packed(params)
        if whole is None:
            return params, {}
        return clean_params(self.listed), {PARAMS: whole}


def create(store: Store, spec: RunSpec, root: Path) -> str:
    """Creates a run with its params and tags.

    Args:
      store: the store and the experiment of the run.
      spec: the run's name, params and tags.
      root: the project's folder, for the git tags.

    Returns:
      The run's id.

    Raises:
      TrackingError: the store failed.
    """
    params, whole_config = spec.stored()
    tags = {**_source_tags(root), **spec.tags, **process.identity()}
    if spec.parent_run_id:
        tags[_PARENT_TAG] = spec.parent_run_id
    tags |= whole_config
    try:
        # The tags are part of the call, so a run never exists without the identity of its process.
        run = store.client.create_run(store.experiment_id, tags=_stored_tags(tags), run_name=spec.name)
        run_id = str(run.info.run_id)
        _log_params(store.client, run_id, params)
    except Exception as error:
        raise _failed(store, "a run", error) from error
    return run_id


def resume(store: Store, run_id: str, spec: RunSpec) -> str:
    """Resumes a run: its status becomes RUNNING and its process this one.

    What an earlier process could not store is stored first. A param keeps its first value.

    A param that has changed is recorded as the tag `resumed.<param>`, for as long as it is not the recorded one again.
    A changed `tracking.run_name` renames the run.

    Args:
      store: the store of the run.
      run_id: the run.
      spec: its params and tags, and the name that it gets if `tracking.run_name` has changed.

    Returns:
      The id of the run's experiment.

    Raises:
      TrackingError: there is no such run, or the store failed.
    """
    params = clean_params(spec.params)
    try:
        run = store.client.get_run(run_id)
        send_of_run(store, run, warn)
        listed, _ = spec.stored()
        tags = tags_of(run.data.tags)
        recorded = params_of(run.data.params, tags)
        changed = {}
        for key, value in params.items():
            if recorded.get(key, value) != value:
                changed[f"{_RESUMED}{key}"] = value
        store.client.update_run(run_id, status="RUNNING")
        # Compared with the last start: a run that was renamed in MLflow keeps that name.
        last_name = tags.get(f"{_RESUMED}{_RUN_NAME}", recorded.get(_RUN_NAME))
        if _RUN_NAME in params and params[_RUN_NAME] != last_name:
            store.client.update_run(run_id, name=spec.name)
        new_tags = _stored_tags({**spec.tags, **process.identity(), **changed})
        for key, value in new_tags.items():
            store.client.set_tag(run_id, key, value)
        for key in run.data.tags:
            if key == NOTE or (key.startswith(_RESUMED) and key not in new_tags):
                store.client.delete_tag(run_id, key)
        new_params = {}
        for key, value in listed.items():
            if key not in run.data.params:
                new_params[key] = value
        _log_params(store.client, run_id, new_params)
    except Exception as error:
        raise _failed(store, f"run {run_id}", error) from error
    return str(run.info.experiment_id)


def _failed(store: Store, what: str, error: Exception) -> TrackingError:
    return TrackingError(
        f"tracking.uri={shown(store.uri)} can't record {what}: {reason(error)}; "
        "fix the cause, or use tracking.uri=<another store> or tracking=none"
    )


def _log_params(client: MlflowClient, run_id: str, params: Mapping[str, str]) -> None:
    entities = list(starmap(Param, params.items()))
    for start in range(0, len(entities), _PARAMS_PER_CALL):
        client.log_batch(run_id, params=entities[start : start + _PARAMS_PER_CALL], synchronous=True)


def _stored_tags(tags: Mapping[str, str]) -> dict[str, str]:
    return {tag_key(key): cut(str(value), TAG_LIMIT) for key, value in tags.items()}


def _source_tags(root: Path) -> dict[str, str]:
    """Returns MLflow's own source tags, and whether git has uncommitted changes."""
    program = Path(session.current().program)
    source = program.name
    if source == "__main__.py":
        # `python -m runner` is recorded as `runner`.
        source = program.parent.name
    tags = {
        "mlflow.source.name": source,
        "mlflow.source.type": "LOCAL",
        "mlflow.user": _user(),
    }
    commit = None
    if (root / ".git").exists():
        commit = _git(root, "rev-parse", "HEAD")
    if commit:
        tags["mlflow.source.git.commit"] = commit
        changes = _git(root, "status", "--porcelain", "-uno")
        tags["runner.git.changed"] = "true" if changes else "false"
    return tags


def _user() -> str:
    try:
        return getpass.getuser()
    # In containers, a user id may have no name.
    except (OSError, KeyError, ImportError):
        return "unknown"


def _git(root: Path, *arguments: str) -> str | None:
    """Returns what a git command prints; None if it fails."""
    # A repository's own settings could make git start any program as its file monitor.
    command = ["git", "-c", "core.fsmonitor=false", *arguments]
    try:
        result = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=_GIT_TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    if result.returncode != 0:
        return None
    return result.stdout.strip()

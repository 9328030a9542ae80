"""Starts a run in an open store, or takes one up again."""

from __future__ import annotations

import getpass
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from mlflow import MlflowClient
from mlflow.entities import Param

from runner.errors import TrackingError
from runner.tracking import process
from runner.tracking.dead import NOTE
from runner.tracking.hidden import PARAMS, packed, params_of, tag_key, tags_of
from runner.tracking.location import shown
from runner.tracking.reason import reason
from runner.tracking.records import TAG_LIMIT, clean_params, cut
from runner.tracking.store import Store

_PARAMS_A_CALL = 100  # MLflow's limit
_PARENT_TAG = "mlflow.parentRunId"


@dataclass(frozen=True)
class RunSpec:
    """What a run is recorded with.

    Attributes:
      name: run name.
      params: as they come from the config, flat.
      tags: without those that every run gets.
      parent_run_id: the run that it is nested in.
      listed: the params that its page lists; null: all.
    """

    name: str
    params: Mapping[str, object]
    tags: Mapping[str, str]
    parent_run_id: str | None
    listed: Mapping[str, object] | None = None

    def stored(self) -> tuple[dict[str, str], dict[str, str]]:
        """Returns what is stored of the params: those that are listed, and the tag that holds all."""
        params = clean_params(self.params)
        whole = None if self.listed is None else packed(params)
        return (params, {}) if self.listed is None or whole is None else (clean_params(self.listed), {PARAMS: whole})


def create(store: Store, spec: RunSpec, root: Path) -> str:
    """Creates a run with its params and tags.

    Args:
      store: where.
      spec: what it is recorded with.
      root: the project's folder, for the git tags.

    Returns:
      The run's id.

    Raises:
      TrackingError: the store failed.
    """
    parent = {_PARENT_TAG: spec.parent_run_id} if spec.parent_run_id else {}
    listed, whole = spec.stored()
    tags = _cleaned({**_source_tags(root), **spec.tags, **process.identity(), **parent, **whole})
    try:
        # One call, so that no moment exists in which the run has no process to be known by.
        run = store.client.create_run(store.experiment_id, tags=tags, run_name=spec.name)
        run_id = str(run.info.run_id)
        _log_params(store.client, run_id, listed)
    except Exception as error:
        raise _failed(store, "a run", error) from error
    return run_id


def resume(store: Store, run_id: str, spec: RunSpec) -> str:
    """Takes a run up again: its status is RUNNING, its process this one; a param keeps its first value.

    A param that is another one now is recorded as the tag `resumed.<param>`.

    Args:
      store: where.
      run_id: the run.
      spec: what it is recorded with; the name and the parent stay as they were.

    Returns:
      The id of the run's experiment.

    Raises:
      TrackingError: there is no such run, or the store failed.
    """
    params = clean_params(spec.params)
    try:
        run = store.client.get_run(run_id)
        listed = spec.stored()[0]
        tags = tags_of(run.data.tags)
        before = params_of(run.data.params, tags)
        changed = {f"resumed.{k}": v for k, v in params.items() if before.get(k, v) != v}
        store.client.update_run(run_id, status="RUNNING")
        for key, value in _cleaned({**spec.tags, **process.identity(), **changed}).items():
            store.client.set_tag(run_id, key, value)
        if NOTE in tags:
            store.client.delete_tag(run_id, NOTE)
        _log_params(store.client, run_id, {k: v for k, v in listed.items() if k not in run.data.params})
    except Exception as error:
        raise _failed(store, f"run {run_id}", error) from error
    return str(run.info.experiment_id)


def _failed(store: Store, what: str, error: Exception) -> TrackingError:
    return TrackingError(
        f"tracking.uri={shown(store.uri)} cannot record {what}: {reason(error)}; "
        f"fix that, or tracking.uri=<another>, or tracking=none"
    )


def _log_params(client: MlflowClient, run_id: str, params: Mapping[str, str]) -> None:
    entities = [Param(key, value) for key, value in params.items()]
    for at in range(0, len(entities), _PARAMS_A_CALL):
        client.log_batch(run_id, params=entities[at : at + _PARAMS_A_CALL], synchronous=True)


def _cleaned(tags: Mapping[str, str]) -> dict[str, str]:
    return {tag_key(key): cut(str(value), TAG_LIMIT) for key, value in tags.items()}


def _source_tags(root: Path) -> dict[str, str]:
    program = Path(sys.argv[0])
    tags = {
        "mlflow.source.name": program.parent.name if program.name == "__main__.py" else program.name,
        "mlflow.source.type": "LOCAL",
        "mlflow.user": _user(),
    }
    commit = _git(root, "rev-parse", "HEAD") if (root / ".git").exists() else None
    if commit:
        tags["mlflow.source.git.commit"] = commit
        tags["runner.git.changed"] = "true" if _git(root, "status", "--porcelain", "-uno") else "false"
    return tags


def _user() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError, ImportError):  # a user id without a name, as in containers
        return "unknown"


def _git(root: Path, *arguments: str) -> str | None:
    command = ["git", "-c", "core.fsmonitor=false", *arguments]
    try:
        result = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=5, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return result.stdout.strip() if result.returncode == 0 else None

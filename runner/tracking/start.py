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
# A file system that hangs must not keep a run from starting: the tag of git is only information.
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
        """Returns the params to store, and the tag with the whole config unless they are all of it."""
        params = clean_params(self.params)
        whole = None if self.listed is None else packed(params)
        if self.listed is None or whole is None:
            return params, {}
        return clean_params(self.listed), {PARAMS: whole}


def create(store: Store, spec: RunSpec, root: Path) -> str:
    """Creates a run with its params and tags, and returns its id; raises TrackingError if the store fails.

    The commit of git in the project's folder `root` is among its tags.
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
    """Resumes a run: its status becomes RUNNING and its process this one. Returns the id of its experiment.

    What an earlier process could not store is stored first. A param keeps its first value; one that has changed is
    recorded as the tag `resumed.<param>`, for as long as it is not the recorded one again. A changed
    `tracking.run_name` renames the run.

    Raises:
      TrackingError: there is no such run, or the store failed.
    """
    client = store.client
    params = clean_params(spec.params)
    try:
        run = client.get_run(run_id)
        send_of_run(store, run, warn)
        tags = tags_of(run.data.tags)
        recorded = params_of(run.data.params, tags)
        changed = {f"{_RESUMED}{key}": value for key, value in params.items() if recorded.get(key, value) != value}
        client.update_run(run_id, status="RUNNING")
        # Compared with the last start: a run that was renamed in MLflow keeps that name.
        last_name = tags.get(f"{_RESUMED}{_RUN_NAME}", recorded.get(_RUN_NAME))
        if _RUN_NAME in params and params[_RUN_NAME] != last_name:
            client.update_run(run_id, name=spec.name)
        new_tags = _stored_tags({**spec.tags, **process.identity(), **changed})
        for key, value in new_tags.items():
            client.set_tag(run_id, key, value)
        for key in run.data.tags:
            if key == NOTE or (key.startswith(_RESUMED) and key not in new_tags):
                client.delete_tag(run_id, key)
        listed, _ = spec.stored()
        _log_params(client, run_id, {key: value for key, value in listed.items() if key not in run.data.params})
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
    """Returns MLflow's own source tags."""
    program = Path(session.current().program)
    # `python -m runner` is recorded as `runner`.
    source = program.parent.name if program.name == "__main__.py" else program.name
    try:
        user = getpass.getuser()
    # In containers, a user id may have no name.
    except (OSError, KeyError, ImportError):
        user = "unknown"
    tags = {"mlflow.source.name": source, "mlflow.source.type": "LOCAL", "mlflow.user": user}
    if (root / ".git").exists():
        try:
            result = subprocess.run(
                ["git", "rev-parse", "HEAD"],
                cwd=root,
                capture_output=True,
                text=True,
                timeout=_GIT_TIMEOUT_S,
                check=True,
            )
            tags["mlflow.source.git.commit"] = result.stdout.strip()
        except (OSError, subprocess.SubprocessError):
            pass  # no git, or no commit yet
    return tags

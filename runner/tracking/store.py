"""Opens a tracking store: reaches it, makes it once however many processes start, and finds the experiment."""

from __future__ import annotations

import contextlib
import hashlib
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from runner.errors import TrackingError
from runner.lock import locked
from runner.signals import current
from runner.tracking.location import is_database, is_http, shown, sqlite_path
from runner.tracking.mlflow_import import load_mlflow
from runner.tracking.writer import reason

# Says in the UI's lists what the experiment is; which view opens, MLflow 3.17 takes from the address's workflowType.
_KIND_TAG, _TRAINING = "mlflow.experimentKind", "custom_model_development"
_CONNECT_TIMEOUT_S = 5


@dataclass(frozen=True)
class Store:
    """An open store.

    Attributes:
      client: an `mlflow.MlflowClient`.
      uri: absolute tracking URI.
      experiment_id: of the experiment that runs go to.
    """

    client: Any
    uri: str
    experiment_id: str


def open_store(uri: str, experiment: str) -> Store:
    """Opens the store and the experiment, making both where they are not there.

    Args:
      uri: absolute tracking URI.
      experiment: the experiment's name.

    Returns:
      The open store.

    Raises:
      TrackingError: it cannot be reached or used; said within about ten seconds.
    """
    mlflow = load_mlflow()
    try:
        _probe(uri)
        with (
            locked(_lock_path(uri)) if is_database(uri) else contextlib.nullcontext(),
            current().deferring() if sqlite_path(uri) else contextlib.nullcontext(),  # half made, it is no database
        ):
            client = mlflow.MlflowClient(tracking_uri=uri)
            return Store(client, uri, _experiment_id(client, uri, experiment))
    except TrackingError:
        raise
    except Exception as error:  # MLflow, SQLAlchemy, requests and drivers share no base class
        raise TrackingError(
            f"tracking.uri={shown(uri)} cannot be used: {reason(error)}; {_mend(uri, error)}"
        ) from error


def _probe(uri: str) -> None:
    """Connects once to a database; MLflow itself would try for half an hour."""
    path = sqlite_path(uri)
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
    elif is_database(uri):
        import sqlalchemy

        name = "timeout" if uri.startswith("mssql") else "connect_timeout"
        engine = sqlalchemy.create_engine(uri, connect_args={name: _CONNECT_TIMEOUT_S})
        try:
            engine.connect().close()
        finally:
            engine.dispose()


def _lock_path(uri: str) -> Path:
    path = sqlite_path(uri)
    if path is not None:
        return path.with_name(path.name + ".lock")
    digest = hashlib.sha256(uri.encode()).hexdigest()[:16]
    return Path(tempfile.gettempdir()) / f"runner-store-{digest}.lock"


def _experiment_id(client: Any, uri: str, name: str) -> str:
    found = client.get_experiment_by_name(name) or _create_experiment(client, uri, name)
    if found.lifecycle_stage != "active":
        raise TrackingError(
            f"tracking.experiment={name} is refused: it was deleted in {shown(uri)}; "
            f"`mlflow experiments restore -x {found.experiment_id}` or tracking.experiment=<another name>"
        )
    if _KIND_TAG not in found.tags:
        client.set_experiment_tag(found.experiment_id, _KIND_TAG, _TRAINING)
    return str(found.experiment_id)


def _create_experiment(client: Any, uri: str, name: str) -> Any:
    from mlflow.exceptions import MlflowException

    path = sqlite_path(uri)
    location = None if path is None else (path.parent / "mlartifacts").as_uri()
    try:
        return client.get_experiment(client.create_experiment(name, location, tags={_KIND_TAG: _TRAINING}))
    except MlflowException:
        found = client.get_experiment_by_name(name)  # another process was quicker
        if found is None:
            raise
        return found


def _mend(uri: str, error: Exception) -> str:
    if "out-of-date database schema" in str(error):
        return f"back the database up, then `mlflow db upgrade {shown(uri)}`, or tracking.uri=<another store>"
    if is_http(uri):
        host = shown(uri).split("://", 1)[1].rstrip("/").partition(":")
        port = host[2] or "80"
        return (
            f"start it (`mlflow server --host {host[0]} --port {port}`), or tracking.uri=<another>, or tracking=none"
        )
    return "mend it, or tracking.uri=sqlite:///<file>, or tracking=none"

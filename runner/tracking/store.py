"""Opens a tracking store: reaches it, makes it once however many processes start, and finds the experiment."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass

from mlflow import MlflowClient
from mlflow.entities import Experiment, Run
from mlflow.exceptions import MlflowException

from runner.errors import TrackingError
from runner.host.lock import locked
from runner.host.signals import current
from runner.host.user_folder import user_folder
from runner.tracking import moved
from runner.tracking.location import fingerprint, is_database, shown, sqlite_path
from runner.tracking.mlflow_import import quiet
from runner.tracking.paging import pages
from runner.tracking.probe import probe, refused_by, unusable

# Says in the UI's lists what the experiment is; which view opens, MLflow 3.17 takes from the address's workflowType.
_KIND_TAG = "mlflow.experimentKind"
_TRAINING = "custom_model_development"


@dataclass(frozen=True)
class Store:
    """An open store.

    Attributes:
      client: of that URI.
      uri: absolute tracking URI.
      experiment_id: of the experiment that runs go to.
    """

    client: MlflowClient
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
    quiet()
    try:
        probe(uri)
        with (
            _locked(uri) if is_database(uri) else contextlib.nullcontext(),
            current().deferring() if sqlite_path(uri) else contextlib.nullcontext(),  # half made, it is no database
        ):
            if (path := sqlite_path(uri)) is not None:
                moved.follow(path)
            client = MlflowClient(tracking_uri=uri)
            return Store(client, uri, _experiment_id(client, uri, experiment))
    except TrackingError:
        raise
    except Exception as error:  # MLflow, SQLAlchemy, requests and drivers share no base class
        raise refused_by(uri, error) from error


def search(store: Store, experiments: Sequence[str], wanted: str) -> list[Run]:
    """Returns every run of some experiments, by id, that one of MLflow's filters lets pass; newest first."""
    return list(pages(store.client, experiments, wanted))


def _locked(uri: str) -> AbstractContextManager[None]:
    """Returns what keeps this user's other processes from making the same store meanwhile."""
    path = sqlite_path(uri)
    if path is not None:
        return locked(path.with_name(path.name + ".lock"))
    folder = user_folder()
    if folder is None:
        return contextlib.nullcontext()
    return locked(folder / f"store-{fingerprint(uri)}.lock")


def _experiment_id(client: MlflowClient, uri: str, name: str) -> str:
    found = client.get_experiment_by_name(name) or _create_experiment(client, uri, name)
    if not found.experiment_id:
        raise unusable(uri, "it answers with something else than MLflow does; name the address of an MLflow server")
    if found.lifecycle_stage != "active":
        raise TrackingError(
            f"tracking.experiment={name}: it was deleted in {shown(uri)}; "
            f"`mlflow experiments restore -x {found.experiment_id}` or tracking.experiment=<another name>"
        )
    if _KIND_TAG not in found.tags:
        client.set_experiment_tag(found.experiment_id, _KIND_TAG, _TRAINING)
    return str(found.experiment_id)


def _create_experiment(client: MlflowClient, uri: str, name: str) -> Experiment:
    path = sqlite_path(uri)
    location = None if path is None else (path.parent / moved.FOLDER).as_uri()
    try:
        return client.get_experiment(client.create_experiment(name, location, tags={_KIND_TAG: _TRAINING}))
    except MlflowException:
        found = client.get_experiment_by_name(name)  # another process was quicker
        if found is None:
            raise
        return found

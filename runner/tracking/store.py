"""Opens a tracking store: probes it, creates it once, and finds the experiment; searches its runs."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import mlflow
from mlflow import MlflowClient
from mlflow.entities import Experiment, Run
from mlflow.exceptions import MlflowException

from runner.errors import TrackingError
from runner.host.lock import locked
from runner.host.signals import current
from runner.tracking.location import VARIABLE, shown, sqlite_path
from runner.tracking.mlflow_import import quiet, warn
from runner.tracking.probe import create_tables, probe, unusable, unusable_by
from runner.tracking.reason import NOT_MLFLOW

# MLflow's UI shows it in the list of experiments. Which view opens is up to the address, in MLflow 3.17.
_KIND_TAG = "mlflow.experimentKind"
_TRAINING = "custom_model_development"
# Folder of the artifacts, next to a SQLite file.
_ARTIFACTS = "mlartifacts"
# Runs per request: MLflow's own default.
_PAGE_SIZE = 1000


@dataclass(frozen=True)
class Store:
    """An open store: MLflow's client, its absolute URI, and the experiment that runs are recorded in."""

    client: MlflowClient
    uri: str
    experiment_id: str

    @contextmanager
    def pointed_at(self) -> Iterator[None]:
        """Points MLflow's global state at the store while the context lasts.

        `set_tracking_uri` also writes into the environment, which is restored too: it would reach child processes.
        """
        previous_uri = mlflow.get_tracking_uri()
        previous_variable = os.environ.get(VARIABLE)
        mlflow.set_tracking_uri(self.uri)
        try:
            yield
        finally:
            mlflow.set_tracking_uri(previous_uri)
            os.environ.pop(VARIABLE, None)
            if previous_variable is not None:
                os.environ[VARIABLE] = previous_variable


def open_store(uri: str, experiment: str) -> Store:
    """Opens the store of an absolute URI and an experiment by name, and creates them if they don't exist.

    Raises:
      TrackingError: it can't be reached or used; raised within about ten seconds.
    """
    quiet()
    path = sqlite_path(uri)
    try:
        probe(uri)
        with _exclusive(uri):
            if path is not None:
                create_tables(path)
            client = MlflowClient(tracking_uri=uri)
            opened = _experiment(client, uri, experiment)
    except TrackingError:
        raise
    # MLflow, SQLAlchemy, requests and drivers share no base class.
    except Exception as error:
        raise unusable_by(uri, error) from error
    if path is not None:
        _check_artifacts(path.parent / _ARTIFACTS, opened)
    return Store(client, uri, str(opened.experiment_id))


def experiment_ids(client: MlflowClient) -> dict[str, str]:
    """Returns the id of every active experiment, by name."""
    return {experiment.name: experiment.experiment_id for experiment in client.search_experiments()}


def search(store: Store, experiments: Sequence[str] | None, filter_string: str) -> list[Run]:
    """Returns every run of some experiments (ids; None: every active one) that matches a filter, newest first."""
    ids = list(experiment_ids(store.client).values()) if experiments is None else list(experiments)
    runs: list[Run] = []
    token = None
    while ids:
        page = store.client.search_runs(ids, filter_string, max_results=_PAGE_SIZE, page_token=token)
        runs += page
        token = page.token
        if not token:
            break
    return runs


@contextmanager
def _exclusive(uri: str) -> Iterator[None]:
    """Keeps this user's other processes from creating the same store meanwhile."""
    path = sqlite_path(uri)
    with ExitStack() as stack:
        if path is not None:
            stack.enter_context(locked(path.with_name(path.name + ".lock")))
            # A file whose tables are only half made can't be opened again, so a signal has to wait.
            stack.enter_context(current().deferring())
        yield


def _experiment(client: MlflowClient, uri: str, name: str) -> Experiment:
    experiment = client.get_experiment_by_name(name) or _create_experiment(client, uri, name)
    if not experiment.experiment_id:
        raise unusable(uri, NOT_MLFLOW, "use the address of an MLflow server")
    if experiment.lifecycle_stage != "active":
        raise TrackingError(
            f"tracking.experiment={name}: was deleted in {shown(uri)}; "
            f"run `mlflow experiments restore -x {experiment.experiment_id}` or set tracking.experiment=<another name>"
        )
    if _KIND_TAG not in experiment.tags:
        client.set_experiment_tag(experiment.experiment_id, _KIND_TAG, _TRAINING)
    return experiment


def _create_experiment(client: MlflowClient, uri: str, name: str) -> Experiment:
    path = sqlite_path(uri)
    location = None if path is None else (path.parent / _ARTIFACTS).as_uri()
    try:
        return client.get_experiment(client.create_experiment(name, location, tags={_KIND_TAG: _TRAINING}))
    except MlflowException:
        # A process of another machine may have been faster.
        experiment = client.get_experiment_by_name(name)
        if experiment is None:
            raise
        return experiment


def _check_artifacts(here: Path, experiment: Experiment) -> None:
    """Warns if the project was moved or copied: MLflow stores the absolute path of an experiment's artifacts."""
    recorded = str(experiment.artifact_location)
    # In a folder of another name they are stored elsewhere on purpose.
    if here.is_dir() and recorded.endswith(f"/{_ARTIFACTS}") and recorded not in (here.as_uri(), str(here)):
        warn(
            f"artifacts of experiment {experiment.name} are stored in {recorded}, not in {here} (was the project "
            "moved or copied?); set tracking.experiment=<new name> for new runs"
        )

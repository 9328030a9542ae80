"""Opens a tracking store: probes it, creates it once, and finds the experiment; finds runs and sweeps."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path

import mlflow
from mlflow import MlflowClient
from mlflow.entities import Experiment, Run
from mlflow.exceptions import MlflowException

from runner.config.schema import TrackingConfig
from runner.errors import ConfigError, TrackingError
from runner.host.lock import locked
from runner.host.paths import project_root
from runner.host.signals import current
from runner.tracking.location import VARIABLE, shown, sqlite_path, tracking_uri
from runner.tracking.mlflow_setup import NOT_MLFLOW, quiet
from runner.tracking.probe import create_tables, probe, unusable, unusable_by

# MLflow's UI shows it in the list of experiments. Which view opens is up to the address, in MLflow 3.17.
_KIND_TAG = "mlflow.experimentKind"
_TRAINING = "custom_model_development"
# Folder of the artifacts, next to a SQLite file.
_ARTIFACTS = "mlartifacts"
# Runs per request: MLflow's own default.
_PAGE_SIZE = 1000
# The newest run, by this name in place of an id.
LATEST = "latest"
KIND_TAG = "runner.kind"
# Sweeps that an error lists.
_SUGGESTIONS = 3


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
        with nullcontext() if path is None else _exclusive(path):
            if path is not None:
                create_tables(path)
            client = MlflowClient(tracking_uri=uri)
            opened = _experiment(client, uri, experiment)
    except TrackingError:
        raise
    # MLflow, SQLAlchemy, requests and drivers share no base class.
    except Exception as error:
        raise unusable_by(uri, error) from error
    return Store(client, uri, str(opened.experiment_id))


def open_tracking(config: TrackingConfig) -> Store:
    """Opens the store that the `tracking` group names; raises TrackingError."""
    return open_store(tracking_uri(config.uri, project_root()), config.experiment)


@contextmanager
def _exclusive(path: Path) -> Iterator[None]:
    """Keeps this user's other processes from creating the same SQLite file meanwhile.

    A file whose tables are only half made can't be opened again, so a signal has to wait.
    """
    with locked(path.with_name(path.name + ".lock")), current().deferring():
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


def search(store: Store, experiments: Sequence[str] | None, filter_string: str) -> list[Run]:
    """Returns every run of some experiments (ids; None: every active one) that matches a filter, newest first."""
    if experiments is None:
        experiments = [experiment.experiment_id for experiment in store.client.search_experiments()]
    runs: list[Run] = []
    token = None
    while experiments:
        page = store.client.search_runs(list(experiments), filter_string, max_results=_PAGE_SIZE, page_token=token)
        runs += page
        token = page.token
        if not token:
            break
    return runs


def named(text: str, names: Mapping[str, str]) -> str:
    """Returns the id of the run that a text names, given run ids and names, newest first.

    A complete id comes before a name, of which the newest run counts, and a name before the start of an id.

    Raises:
      LookupError: no run matches, or several ids have this start; its text says which.
    """
    by_start = [run_id for run_id in names if text and run_id.startswith(text)]
    if text in by_start:
        return text
    for run_id, name in names.items():
        if name == text:
            return run_id
    if len(by_start) == 1:
        return by_start[0]
    raise LookupError("several run ids start with this" if by_start else "no run has this id or name")


def find_sweep(store: Store, which: str, experiments: Sequence[str] | None = None) -> Run:
    """Finds the newest sweep of a run id, the start of one, a run name, or `latest`; raises ConfigError.

    It searches the experiments of these ids; None: all of them.
    """
    runs = search(store, experiments, f"tags.`{KIND_TAG}` = 'sweep'")
    for run in runs:
        if which == LATEST or run.info.run_id.startswith(which) or run.info.run_name == which:
            return run
    latest = ", ".join(f"{run.info.run_id} ({run.info.run_name})" for run in runs[:_SUGGESTIONS])
    raise ConfigError(f"sweep {which}: no such sweep in this store; the latest are: {latest or 'none yet'}")

"""Opens a tracking store: probes it, creates it once, and finds the experiment; finds runs and sweeps."""

from __future__ import annotations

import os
import shlex
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import mlflow
import sqlalchemy
from mlflow import MlflowClient
from mlflow.entities import Experiment, Run
from mlflow.exceptions import MlflowException
from mlflow.utils.file_utils import local_file_uri_to_path
from sqlalchemy.pool import StaticPool

from runner.config.schema import TrackingConfig
from runner.errors import ConfigError, TrackingError
from runner.host.late import late
from runner.host.lock import locked
from runner.host.paths import project_root
from runner.host.secrets import scrub
from runner.host.signals import current
from runner.tracking.location import VARIABLE, experiment_name, is_database, is_http, shown, sqlite_path, tracking_uri
from runner.tracking.mlflow_setup import NOT_MLFLOW, http_code, quiet, reason, warn

if TYPE_CHECKING:
    from mlflow.store.db import utils
else:
    # MLflow's database code, which a tracking server's clients don't need.
    utils = late("mlflow.store.db.utils")

# MLflow's UI shows it in the list of experiments. Which view opens is up to the address, in MLflow 3.17.
_KIND = {"mlflow.experimentKind": "custom_model_development"}
# Folder of the artifacts, next to a SQLite file.
_ARTIFACTS = "mlartifacts"
# Runs per request: MLflow's own default.
_PAGE_SIZE = 1000
# The newest run, by this name in place of an id.
LATEST = "latest"
KIND_TAG = "runner.kind"
# Sweeps that an error lists.
_SUGGESTIONS = 3
# For the connection to a database server. One that responds at all does so within a second or two.
_CONNECT_TIMEOUT_S = 5
_LOCK_TIMEOUT_S = 10.0


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


def open_tracking(config: TrackingConfig, root: Path | None = None) -> Store:
    """Opens the store that the `tracking` group names; `root` has the default one, null: the project's folder."""
    return open_store(tracking_uri(config.uri, root or project_root()), experiment_name(config.experiment))


def open_store(uri: str, experiment: str) -> Store:
    """Opens the store of an absolute URI and an experiment by name, and creates them if they don't exist.

    A store that can't be used is a TrackingError within about ten seconds.
    """
    quiet()
    path = sqlite_path(uri)
    try:
        if path is not None:
            _prepare_sqlite(path)
        elif is_database(uri):
            _probe_server(uri)
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


def _probe_server(uri: str) -> None:
    """Connects to a database server once; MLflow would retry for minutes and then print pages of SQL."""
    option = "timeout" if uri.startswith("mssql") else "connect_timeout"
    engine = sqlalchemy.create_engine(uri, connect_args={option: _CONNECT_TIMEOUT_S})
    try:
        engine.connect().close()
    finally:
        engine.dispose()


def _prepare_sqlite(path: Path) -> None:
    """Creates a SQLite store if there is none, and checks that it can be written.

    MLflow's migrations are run in memory: in the file each waits for the disk several times, 5 s instead of 1 s on a
    slow disk (MLflow 3.17), and a file that is only half made could not be opened again.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    # Keeps this user's other processes from creating the same file meanwhile.
    with locked(path.with_name(path.name + ".lock")), current().deferring():
        if not path.exists():
            # With StaticPool all connections share the one database in memory.
            engine = sqlalchemy.create_engine("sqlite://", poolclass=StaticPool)
            utils._initialize_tables(engine)
            unfinished = path.with_name(path.name + ".new")
            unfinished.unlink(missing_ok=True)
            with closing(engine.raw_connection()) as memory, closing(sqlite3.connect(unfinished)) as file:
                memory.driver_connection.backup(file)  # type: ignore[union-attr]
            engine.dispose()
            # Another program may have created the file meanwhile.
            if not path.exists():
                unfinished.replace(path)
    with closing(sqlite3.connect(path, timeout=_LOCK_TIMEOUT_S, isolation_level=None)) as connection:
        # Every write begins so. It shows a lock, a read-only file or a full disk, and changes nothing.
        connection.execute("BEGIN IMMEDIATE")
        connection.execute("ROLLBACK")


def unusable(uri: str, problem: str, fix: str = "fix the cause") -> TrackingError:
    """Returns the error for a store, with the first thing to do and the alternatives."""
    alternatives = "or use tracking.uri=<another store> or tracking=none"
    return TrackingError(f"tracking.uri={shown(uri)} can't be used: {problem}; {fix}, {alternatives}")


def unusable_by(uri: str, error: Exception) -> TrackingError:
    """Returns the error for a store that MLflow, a server or a driver failed to open, with the first thing to do."""
    if "out-of-date database schema" in str(error):
        fix = f"back it up and run `mlflow db upgrade {shlex.quote(shown(uri))}`, or install the newer MLflow"
        return unusable(uri, "another version of MLflow made its tables", fix)
    code = http_code(error)
    fix = "fix the cause"
    if code in (401, 403, 407) or "PERMISSION_DENIED" in str(error):
        fix = "set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD, or MLFLOW_TRACKING_TOKEN"
    elif is_http(uri):
        fix = "start it (`mlflow server`), or check its address and its log"
    return unusable(uri, scrub(reason(error), uri), fix)


def _experiment(client: MlflowClient, uri: str, name: str) -> Experiment:
    experiment = client.get_experiment_by_name(name) or _create_experiment(client, uri, name)
    if not experiment.experiment_id:
        raise unusable(uri, NOT_MLFLOW, "use the address of an MLflow server")
    if experiment.lifecycle_stage != "active":
        raise TrackingError(
            f"tracking.experiment={name}: was deleted in {shown(uri)}; "
            f"run `mlflow experiments restore -x {experiment.experiment_id}` or set tracking.experiment=<another name>"
        )
    return experiment


def _create_experiment(client: MlflowClient, uri: str, name: str) -> Experiment:
    path = sqlite_path(uri)
    location = None if path is None else (path.parent / _ARTIFACTS).as_uri()
    try:
        return client.get_experiment(client.create_experiment(name, location, tags=_KIND))
    except MlflowException:
        # Another process may have been faster.
        experiment = client.get_experiment_by_name(name)
        if experiment is None:
            raise
        return experiment


def _check_artifacts(here: Path, experiment: Experiment) -> None:
    """Warns if the project was moved or copied: MLflow stores the absolute path of an experiment's artifacts."""
    recorded = local_file_uri_to_path(str(experiment.artifact_location))
    # In a folder of another name they are stored elsewhere on purpose.
    moved = recorded.endswith(f"/{_ARTIFACTS}") and os.path.realpath(recorded) != os.path.realpath(here)
    if moved and here.is_dir():
        warn(
            f"artifacts of experiment {experiment.name} are stored in {recorded}, not in {here} (was the project "
            "moved or copied?); set tracking.experiment=<new name> for new runs"
        )


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

"""Probes a store before MLflow opens it, which would retry for minutes and then print pages of SQL.

It also creates a new SQLite store's tables: in memory, and then in one transaction. MLflow creates them in the file by
running all of its migrations one after another. Each waits for the disk several times, and an interrupt in between
leaves a file that MLflow can't open any more. The same migrations in memory took 0.5 s of CPU time instead of 0.8 s,
and 1 s instead of 5 s (MLflow 3.17, slow disk).
"""

from __future__ import annotations

import shlex
import sqlite3
from contextlib import closing, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import sqlalchemy
from sqlalchemy.pool import StaticPool

from runner.errors import TrackingError
from runner.host.late import late
from runner.host.secrets import scrub
from runner.tracking.location import is_database, is_http, shown, sqlite_path
from runner.tracking.mlflow_setup import NOT_MLFLOW, http_code, reason

if TYPE_CHECKING:
    from mlflow.store.db import utils
else:
    # MLflow's database code, which a tracking server's clients don't need.
    utils = late("mlflow.store.db.utils")

# MLflow's private function that runs the migrations. Without it, MLflow creates the tables itself, as said above.
_INITIALIZE = "_initialize_tables"
# For the connection to a database server. One that responds at all does so within a second or two.
_CONNECT_TIMEOUT_S = 5
# Processes that start together make the tables of a new store one after another, which takes seconds each.
_LOCK_TIMEOUT_S = 10.0


def probe(uri: str) -> None:
    """Connects to a database once, if the absolute URI is that of one; makes the folder of a SQLite file.

    Raises:
      TrackingError: it can't be used; one line.
      Exception: any error of the database's driver.
    """
    path = sqlite_path(uri)
    if path is not None:
        _probe_sqlite(uri, path)
    elif is_database(uri):
        option = "timeout" if uri.startswith("mssql") else "connect_timeout"
        engine = sqlalchemy.create_engine(uri, connect_args={option: _CONNECT_TIMEOUT_S})
        try:
            engine.connect().close()
        finally:
            engine.dispose()


def _probe_sqlite(uri: str, path: Path) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise unusable(uri, reason(error), "choose a file in a writable folder") from error
    try:
        with closing(sqlite3.connect(path, timeout=_LOCK_TIMEOUT_S, isolation_level=None)) as connection:
            rows = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
            tables = {name for (name,) in rows}
            # Every write begins so. It shows a lock, a read-only file or a full disk, and changes nothing.
            connection.execute("BEGIN IMMEDIATE")
            connection.execute("ROLLBACK")
    except sqlite3.Error as error:
        fix = f"check {path}"
        if "locked" in str(error):
            fix = f"wait for the other program that holds {path}"
        raise unusable(uri, reason(error), fix) from error
    if tables and not tables & {"alembic_version", "experiments"}:
        raise unusable(uri, f"{path} is another program's database", "choose another file")


def create_tables(path: Path) -> None:
    """Creates MLflow's tables in a SQLite file that has none, whose folder exists; else does nothing.

    A failure is not reported here: MLflow, which opens the file next, meets its cause too.
    """
    if not hasattr(utils, _INITIALIZE):
        return
    with closing(sqlite3.connect(path, timeout=_LOCK_TIMEOUT_S, isolation_level=None)) as connection:
        (count,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
        if not count:
            # The transaction fails if another process has created a table meanwhile, so nothing is overwritten.
            with suppress(sqlite3.Error):
                connection.executescript(_script())


def _script() -> str:
    """Returns the statements that create the tables, as one transaction."""
    # With StaticPool all connections share the one database in memory.
    engine = sqlalchemy.create_engine("sqlite://", poolclass=StaticPool)
    try:
        getattr(utils, _INITIALIZE)(engine)
        with closing(engine.raw_connection()) as connection:
            memory = connection.driver_connection
            assert isinstance(memory, sqlite3.Connection)
            return "\n".join(memory.iterdump())
    finally:
        engine.dispose()


def unusable(uri: str, problem: str, fix: str) -> TrackingError:
    """Returns the error for a store that can't be used, with the first thing to do about it."""
    alternatives = "or use tracking.uri=<another store> or tracking=none"
    return TrackingError(f"tracking.uri={shown(uri)} can't be used: {problem}; {fix}, {alternatives}")


def unusable_by(uri: str, error: Exception) -> TrackingError:
    """Returns the error for a store that MLflow, a server or a driver failed to open."""
    if "out-of-date database schema" in str(error):
        fix = f"back it up and run `mlflow db upgrade {shlex.quote(shown(uri))}`, or install the newer MLflow"
        return unusable(uri, "another version of MLflow made its tables", fix)
    code = http_code(error)
    fix = "fix the cause"
    if code in (401, 403, 407) or "PERMISSION_DENIED" in str(error):
        fix = "set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD, or MLFLOW_TRACKING_TOKEN"
    elif code is not None or reason(error) == NOT_MLFLOW:
        fix = "use the address of an MLflow server, or check its log"
    elif is_http(uri):
        fix = "start it (`mlflow server`), or check the address"
    return unusable(uri, scrub(reason(error), uri), fix)

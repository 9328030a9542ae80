"""Probes a store before MLflow opens it, which would retry for minutes and then print pages of SQL."""

from __future__ import annotations

import shlex
import sqlite3
from contextlib import closing
from pathlib import Path

import sqlalchemy

from runner.errors import TrackingError
from runner.host.secrets import scrub
from runner.tracking.location import is_database, is_http, shown, sqlite_path
from runner.tracking.reason import NOT_MLFLOW, http_code, reason

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

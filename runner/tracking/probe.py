"""Probes a store before MLflow opens it.

MLflow would retry for minutes and then print pages of SQL.
"""

from __future__ import annotations

import importlib.util
import re
import shlex
import sqlite3
from contextlib import closing
from pathlib import Path

import sqlalchemy

from runner.errors import TrackingError
from runner.host.secrets import scrub
from runner.tracking.location import host_and_port, is_database, is_http, shown, sqlite_path
from runner.tracking.reason import NOT_MLFLOW, http_code, reason

# For the connection to a database server. One that responds at all does so within a second or two.
_CONNECT_TIMEOUT_S = 5
# Processes that start together make the tables of a new store one after another, which takes seconds each.
_LOCK_TIMEOUT_S = 10.0
_ALTERNATIVES = "or use tracking.uri=<another store> or tracking=none"


def probe(uri: str) -> None:
    """Connects to a database once; makes the folder of a SQLite file.

    Args:
      uri: absolute tracking URI. One that is not a database's is not probed.

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
        if path.is_dir():
            fix = "choose a file in this folder"
        elif "locked" in str(error):
            fix = f"wait for the other program that holds {path}"
        raise unusable(uri, reason(error), fix) from error
    if tables and "alembic_version" not in tables and "experiments" not in tables:
        raise unusable(uri, f"{path} is another program's database", "choose another file")


def unusable(uri: str, problem: str, fix: str) -> TrackingError:
    """Builds the error for a store that can't be used.

    Args:
      uri: absolute tracking URI.
      problem: what is wrong with the store.
      fix: the first thing to do about it, as an imperative.
    """
    return TrackingError(f"tracking.uri={shown(uri)} can't be used: {problem}; {fix}, {_ALTERNATIVES}")


def unusable_by(uri: str, error: Exception) -> TrackingError:
    """Builds the error for a store that MLflow, a server or a driver failed to open."""
    match = re.search(r"out-of-date database schema \(found version (\w+)", str(error))
    if match is None:
        return unusable(uri, scrub(reason(error), uri), _fix(uri, error))
    version = match.group(1)
    if _is_known_schema(version):
        fix = f"back it up and run `mlflow db upgrade {shlex.quote(shown(uri))}`"
        return unusable(uri, "an older MLflow made its tables", fix)
    return unusable(uri, f"a newer MLflow made its tables (schema {version})", "install that MLflow")


def _is_known_schema(version: str) -> bool:
    """Returns whether the installed MLflow has a migration from this version.

    If it has one, the version is an older one.
    """
    spec = importlib.util.find_spec("mlflow")
    if spec is None or spec.origin is None:
        return False
    migrations = Path(spec.origin).parent / "store" / "db_migrations" / "versions"
    return any(migrations.glob(f"{version}_*.py"))


def _fix(uri: str, error: Exception) -> str:
    code = http_code(error)
    if code in (401, 403, 407) or "PERMISSION_DENIED" in str(error):
        return "set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD, or MLFLOW_TRACKING_TOKEN"
    if code is not None or reason(error) == NOT_MLFLOW:
        return "use the address of an MLflow server, or check its log"
    if is_http(uri):
        host, port = host_and_port(uri)
        return f"start it (`mlflow server --host {host} --port {port}`)"
    return "fix the cause"

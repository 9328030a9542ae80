"""Looks at a store before MLflow opens it, which would try for minutes and then say it in pages of SQL."""

from __future__ import annotations

import importlib.util
import os
import re
import shlex
import sqlite3
from contextlib import closing, suppress
from pathlib import Path

import sqlalchemy

from runner.errors import TrackingError
from runner.host.secrets import scrub
from runner.tracking.location import host_and_port, is_database, is_http, shown, sqlite_path
from runner.tracking.reason import http_code, reason

_CONNECT_TIMEOUT_S = 5
_LOCK_TIMEOUT_S = 10.0  # processes that start together make the tables one after another
_ELSEWHERE = "or tracking.uri=<another store>, or tracking=none"


def probe(uri: str) -> None:
    """Connects once to a database.

    Args:
      uri: absolute tracking URI; one that is none of a database is not looked at.

    Raises:
      TrackingError: it can't be used, in one line.
      Exception: what the database's driver says.
    """
    path = sqlite_path(uri)
    if path is not None:
        _probe_sqlite(uri, path)
    elif is_database(uri):
        name = "timeout" if uri.startswith("mssql") else "connect_timeout"
        engine = sqlalchemy.create_engine(uri, connect_args={name: _CONNECT_TIMEOUT_S})
        try:
            engine.connect().close()
        finally:
            engine.dispose()


def _probe_sqlite(uri: str, path: Path) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise unusable(uri, f"{reason(error)}; name a file in a folder that can be written") from error
    try:
        with closing(sqlite3.connect(path, timeout=_LOCK_TIMEOUT_S, isolation_level=None)) as connection:
            tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
            connection.execute("BEGIN IMMEDIATE")  # what every write begins with
            connection.execute("ROLLBACK")
    except sqlite3.Error as error:
        raise unusable(uri, f"{reason(error)}; {_sqlite_mend(path, error)}") from error
    if tables and "alembic_version" not in tables and "experiments" not in tables:
        raise unusable(uri, f"{path} is another program's database; name a file of its own")


def _sqlite_mend(path: Path, error: sqlite3.Error) -> str:
    text = str(error)
    if "locked" in text or "busy" in text:
        return f"{_holder(path)}, and it stayed so for {_LOCK_TIMEOUT_S:.0f} s; end it or wait for it"
    if path.is_dir():
        return f"{path} is a folder; name a file in it"
    if "readonly" in text:
        return f"make {path} and its folder writable for you"
    if "unable to open" in text:
        return f"{path} or its folder can't be read and written; fix their rights"
    if "not a database" in text or "malformed" in text:
        return f"{path} is damaged or something else; bring back a copy, or name another file"
    return f"fix {path}"


def _holder(path: Path) -> str:
    """Says who holds a file's lock, as far as the system tells."""
    with suppress(OSError, ValueError):
        found = path.stat()
        place = f"{os.major(found.st_dev):02x}:{os.minor(found.st_dev):02x}:{found.st_ino}"
        for line in Path("/proc/locks").read_text().splitlines():
            fields = line.split()
            if "->" not in fields and len(fields) > 5 and fields[5] == place:
                return f"process {fields[4]}{_command(fields[4])} holds {path}"
    return f"another program, as an open database browser or a run in a transaction, holds {path}"


def _command(pid: str) -> str:
    with suppress(OSError):
        words = Path(f"/proc/{pid}/comm").read_text().strip()
        return f" ({words})"
    return ""


def unusable(uri: str, why: str) -> TrackingError:
    """Words why a store can't be used.

    Args:
      uri: absolute tracking URI.
      why: the reason, and the first thing to do about it.
    """
    return TrackingError(f"tracking.uri={shown(uri)} cannot be used: {why}, {_ELSEWHERE}")


def refused_by(uri: str, error: Exception) -> TrackingError:
    """Words what MLflow, a server or a driver said when the store was opened."""
    old = re.search(r"out-of-date database schema \(found version (\w+)", str(error))
    if old is not None:
        return unusable(uri, _other_schema(uri, old.group(1)))
    return unusable(uri, f"{scrub(reason(error), uri)}; {_mend(uri, error)}")


def _other_schema(uri: str, version: str) -> str:
    if _is_known_schema(version):
        return f"an older MLflow made its tables; back it up, then `mlflow db upgrade {shlex.quote(shown(uri))}`"
    return f"a newer MLflow made its tables (version {version}); install that MLflow"


def _is_known_schema(version: str) -> bool:
    spec = importlib.util.find_spec("mlflow")
    folder = Path(spec.origin).parent / "store" / "db_migrations" / "versions" if spec and spec.origin else Path()
    return any(folder.glob(f"{version}_*.py"))


def _mend(uri: str, error: Exception) -> str:
    if not is_http(uri):
        return "fix that"
    code = http_code(error)
    if code in (401, 403, 407) or "PERMISSION_DENIED" in str(error):
        return "set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD, or MLFLOW_TRACKING_TOKEN, to who may use it"
    if code is not None and code >= 500:
        return "look into the server's log, or at the proxy before it"
    if code == 429:
        return "it has too much to do, try again later"
    if code is not None or "something else" in reason(error):
        return "name the address of an MLflow server, with its path where a proxy adds one"
    host, port = host_and_port(uri)
    return f"start it (`mlflow server --host {host} --port {port}`)"

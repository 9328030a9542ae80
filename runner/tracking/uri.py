"""Checks of the tracking URI that need no MLflow, so that errors are immediate."""

from __future__ import annotations

import importlib.util
import os
import re
from difflib import get_close_matches
from importlib.metadata import entry_points, version
from urllib.parse import urlsplit

from runner.config.schema import TrackingConfig
from runner.errors import ConfigError, invalid
from runner.tracking.location import shown

VARIABLE = "MLFLOW_TRACKING_URI"
_FILE_STORE = "MLFLOW_ALLOW_FILE_STORE"
_FORMS = "sqlite:///<file>, http(s)://<server>, or a database such as postgresql+psycopg://<user>@<host>/<name>"
_SERVER_FIX = "write it as http://host:5000"
# The drivers that SQLAlchemy supports for each kind of database, with the module that each needs.
_DRIVERS = {
    "postgresql": {"psycopg2": "psycopg2", "psycopg": "psycopg", "pg8000": "pg8000"},
    "mysql": {"mysqldb": "MySQLdb", "pymysql": "pymysql", "mysqlconnector": "mysql.connector"},
    "mssql": {"pyodbc": "pyodbc", "pymssql": "pymssql"},
}
# Drivers whose package has another name.
_PACKAGES = {
    "psycopg": "psycopg[binary]",
    "psycopg2": "psycopg2-binary",
    "mysqldb": "mysqlclient",
    "mysqlconnector": "mysql-connector-python",
}
# Names that people use for a kind of database, and that are too different to be found by their spelling.
_ALIASES = {"postgres": "postgresql", "maria": "mysql", "mariadb": "mysql"}
# Similarity from which on a scheme is suggested: `htp` is near `http`, `foo` and `s3` are near none.
_MIN_SIMILARITY = 0.55


def check(config: TrackingConfig) -> None:
    """Rejects a tracking URI, of the config or environment, that MLflow can't use.

    Raises:
      ConfigError: its form or its scheme is invalid, or a database's driver is not installed.
    """
    if config.name == "none":
        return
    variable = os.environ.get(VARIABLE, "").strip()
    if config.uri is not None:
        _check("tracking.uri", config.uri)
    elif variable:
        _check(VARIABLE, variable)


def _check(key: str, uri: str) -> None:
    scheme, colon, rest = uri.partition(":")
    kind, _, driver = scheme.partition("+")
    # `C:\runs`, `./runs`, and `host:5000` have a colon or a word before it, and no scheme.
    has_no_scheme = not colon or "/" in scheme or len(scheme) == 1 or re.fullmatch(r"\d+(/.*)?", rest)
    if has_no_scheme:
        _check_without_scheme(key, uri)
    elif kind == "sqlite":
        _check_sqlite(key, uri, rest, driver)
    elif kind in _DRIVERS and rest.startswith("//"):
        _check_driver(key, uri, kind, driver)
    elif scheme in ("http", "https"):
        _check_server(key, uri, rest)
    elif scheme == "file":
        _check_file_store(key, uri)
    elif not (scheme == "databricks" and rest.startswith("//")) and scheme not in _plugin_schemes():
        raise _invalid(key, uri, f"unknown scheme '{scheme}'", _scheme_suggestion(kind))


def _scheme_suggestion(kind: str) -> str | None:
    """Returns the fix for an unknown scheme; None if no known one is similar."""
    similar = _ALIASES.get(kind)
    if similar is None and kind in _DRIVERS:
        # The scheme is right, but no `//` follows it.
        similar = kind
    if similar is None:
        known = ("sqlite", "http", "https", *_DRIVERS)
        matches = get_close_matches(kind.lower(), known, n=1, cutoff=_MIN_SIMILARITY)
        if not matches:
            return None
        similar = matches[0]
    form = f"{similar}://"
    if similar == "sqlite":
        form = "sqlite:///<file>"
    return f"did you mean {form}?"


def _check_without_scheme(key: str, uri: str) -> None:
    if uri == "databricks":
        return
    if not uri.strip():
        raise _invalid(key, "''", "must not be empty", f"set {key}=sqlite:///runs.db, or remove it")
    if re.fullmatch(r"[\w.-]+:\d+(/.*)?|localhost", uri):
        raise _invalid(key, uri, "needs a scheme", f"set {key}=http://{uri}")
    if uri in ("uc", "databricks-uc"):
        raise _invalid(key, uri, "Unity Catalog stores models, not runs", None)
    _check_file_store(key, uri)


def _check_file_store(key: str, uri: str) -> None:
    if os.environ.get(_FILE_STORE, "").lower() in ("true", "1"):
        return
    path = re.sub(r"^file:(//)?", "", uri).rstrip("/") or "runs"
    if not path.endswith(".db"):
        path += ".db"
    problem = f"MLflow no longer records in a folder of files (unless {_FILE_STORE}=true)"
    raise _invalid(key, uri, problem, f"set {key}=sqlite:///{path}")


def _check_sqlite(key: str, uri: str, rest: str, driver: str) -> None:
    path = rest.lstrip("/").partition("?")[0]
    if path == ":memory:":
        raise _invalid(key, uri, "an in-memory database is lost when the run ends", f"set {key}=sqlite:///runs.db")
    # The usual driver is named in the URI of a path with special characters.
    has_other_driver = driver not in ("", "pysqlite")
    if has_other_driver or not path or not rest.startswith("///"):
        raise _invalid(key, uri, "must be sqlite:/// and a file", f"set {key}=sqlite:///{path or 'runs.db'}")


def _check_driver(key: str, uri: str, kind: str, driver: str) -> None:
    drivers = _DRIVERS[kind]
    name = driver or _default_driver(kind)
    if name not in drivers:
        matches = get_close_matches(name, drivers, n=1)
        suggestion = _default_driver(kind)
        if matches:
            suggestion = matches[0]
        problem = f"unknown driver '{name}', {kind} has {', '.join(drivers)}"
        raise _invalid(key, uri, problem, f"did you mean {kind}+{suggestion}://?")
    if _is_installed(drivers[name]):
        return
    fix = f"pip install '{_PACKAGES.get(name, name)}'"
    for other, module in drivers.items():
        if _is_installed(module):
            fix = f"write {kind}+{other}://, or {fix}"
            break
    raise invalid(key, shown(uri), problem=f"its driver {name} is not installed", fix=fix)


def _default_driver(kind: str) -> str:
    """Returns the driver that SQLAlchemy uses if the URI names none."""
    major, minor = version("sqlalchemy").split(".")[:2]
    if kind == "postgresql" and (int(major), int(minor)) >= (2, 1):
        return "psycopg"
    return next(iter(_DRIVERS[kind]))


def _check_server(key: str, uri: str, rest: str) -> None:
    try:
        parts = urlsplit(uri)
        host = parts.hostname
        port = parts.port
    except ValueError:
        raise _invalid(key, uri, "its port must be a number from 1 to 65535", _SERVER_FIX) from None
    if not rest.startswith("//") or not host or port == 0 or re.search(r"\s", uri):
        raise _invalid(key, uri, "needs the address of a server", _SERVER_FIX)


def _is_installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        # The package that the module would be in is missing.
        return False


def _plugin_schemes() -> set[str]:
    return {entry_point.name for entry_point in entry_points(group="mlflow.tracking_store")}


def _invalid(key: str, uri: str, problem: str, fix: str | None) -> ConfigError:
    return invalid(
        key,
        shown(uri),
        problem=f"{problem} (valid forms: {_FORMS})",
        fix=fix or f"set {key}=sqlite:///<file>",
    )

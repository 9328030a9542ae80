"""Checks of the tracking URI that need no MLflow, so that errors are immediate."""

from __future__ import annotations

import importlib.util
import os
import re
from importlib.metadata import entry_points
from urllib.parse import urlsplit

from runner.config.schema import TrackingConfig
from runner.errors import ConfigError, invalid
from runner.tracking.location import shown

VARIABLE = "MLFLOW_TRACKING_URI"
_FILE_STORE = "MLFLOW_ALLOW_FILE_STORE"
_FORMS = "sqlite:///<file>, http(s)://<server>, or a database such as postgresql+psycopg://<user>@<host>/<name>"
# The kinds of databases with the drivers that SQLAlchemy takes if a URI names none: that of 2.0, that of 2.1.
_DATABASES = {"postgresql": ("psycopg2", "psycopg"), "mysql": ("mysqldb",), "mssql": ("pyodbc",)}
# The modules of drivers that have another name.
_MODULES = {"mysqldb": "MySQLdb", "mysqlconnector": "mysql.connector"}


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
    scheme, _, rest = uri.partition("://")
    kind, _, driver = scheme.partition("+")
    if uri == "databricks" or (rest and scheme in _plugin_schemes()):
        return
    if not rest or scheme == "file":
        # `C:\\runs`, `./runs` and `host:5000` have no scheme.
        if os.environ.get(_FILE_STORE, "").lower() not in ("true", "1") or not uri.strip():
            raise _invalid(key, uri, f"needs a scheme, or {_FILE_STORE}=true for a folder of files")
    elif kind == "sqlite":
        path = rest.lstrip("/").partition("?")[0]
        # The usual driver is named in the URI of a path with special characters.
        if driver not in ("", "pysqlite") or not rest.startswith("/") or path in ("", ":memory:"):
            raise _invalid(key, uri, "must be sqlite:/// and a file")
    elif kind in _DATABASES:
        names = (driver,) if driver else _DATABASES[kind]
        if not any(_is_installed(_MODULES.get(name, name)) for name in names):
            problem = f"its driver {' or '.join(names)} is not installed"
            raise invalid(key, shown(uri), problem=problem, fix=f"install it, or write {kind}+<driver>://")
    elif scheme in ("http", "https"):
        _check_server(key, uri)
    else:
        raise _invalid(key, uri, f"unknown scheme '{scheme}'")


def _check_server(key: str, uri: str) -> None:
    try:
        parts = urlsplit(uri)
        is_valid = parts.hostname and parts.port != 0 and not re.search(r"\s", uri)
    except ValueError:
        is_valid = False
    if not is_valid:
        raise _invalid(key, uri, "needs a server and a port from 1 to 65535, as http://host:5000")


def _is_installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        # The package that the module would be in is missing.
        return False


def _plugin_schemes() -> set[str]:
    return {"databricks", *(entry_point.name for entry_point in entry_points(group="mlflow.tracking_store"))}


def _invalid(key: str, uri: str, problem: str) -> ConfigError:
    return invalid(key, shown(uri) or "''", problem=problem, fix=f"write {_FORMS}")

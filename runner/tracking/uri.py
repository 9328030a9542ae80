"""Which tracking URIs can work, said before MLflow is imported."""

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
_ALLOWED = "sqlite:///<file>, http(s)://<server>, or a database as postgresql+psycopg://<user>@<host>/<name>"
# Of each kind of database the drivers that SQLAlchemy knows, with the module that each needs.
_DRIVERS = {
    "postgresql": {"psycopg2": "psycopg2", "psycopg": "psycopg", "pg8000": "pg8000"},
    "mysql": {"mysqldb": "MySQLdb", "pymysql": "pymysql", "mysqlconnector": "mysql.connector"},
    "mssql": {"pyodbc": "pyodbc", "pymssql": "pymssql"},
}
_PACKAGES = {"psycopg": "psycopg[binary]", "psycopg2": "psycopg2-binary", "mysqldb": "mysqlclient"}
_PACKAGES |= {"mysqlconnector": "mysql-connector-python"}


def check(config: TrackingConfig) -> None:
    """Refuses a tracking URI that MLflow can't take, whether the config or the environment gives it.

    Raises:
      ConfigError: its form, its scheme, or a database's driver that is not installed.
    """
    if config.name == "none":
        return
    if config.uri is not None:
        _check("tracking.uri", config.uri)
    elif given := os.environ.get(VARIABLE, "").strip():
        _check(VARIABLE, given)


def _check(key: str, uri: str) -> None:
    scheme, colon, rest = uri.partition(":")
    kind, _, driver = scheme.partition("+")
    if not colon or "/" in scheme or len(scheme) == 1 or re.fullmatch(r"\d+(/.*)?", rest):
        _check_word(key, uri)
    elif kind == "sqlite":
        _check_sqlite(key, uri, rest, driver)
    elif kind in _DRIVERS and rest.startswith("//"):
        _check_driver(key, uri, kind, driver)
    elif scheme in ("http", "https"):
        _check_server(key, uri, rest)
    elif scheme == "file":
        _check_file_store(key, uri)
    elif not (scheme == "databricks" and rest.startswith("//")) and scheme not in _plugins():
        known = {"postgres": "postgresql", "maria": "mysql", "mariadb": "mysql"}
        close = get_close_matches(kind.lower(), ("sqlite", "http", "https", *_DRIVERS), n=1, cutoff=0.55)
        near = known.get(kind) or (kind if kind in _DRIVERS else next(iter(close), None))
        form = "sqlite:///<file>" if near == "sqlite" else f"{near}://"
        raise _refused(key, uri, "no store of this scheme", f"did you mean {form}?" if near else None)


def _check_word(key: str, uri: str) -> None:
    if uri == "databricks":
        return
    if not uri.strip():
        raise invalid(key, "''", problem=_ALLOWED, fix=f"set {key}=sqlite:///runs.db, or leave it out")
    if re.fullmatch(r"[\w.-]+:\d+(/.*)?|localhost", uri):
        raise _refused(key, uri, "a scheme is missing", f"set {key}=http://{uri}")
    if uri in ("uc", "databricks-uc"):
        raise _refused(key, uri, "Unity Catalog holds models, not runs", None)
    _check_file_store(key, uri)


def _check_file_store(key: str, uri: str) -> None:
    if os.environ.get(_FILE_STORE, "").lower() not in ("true", "1"):
        path = re.sub(r"^file:(//)?", "", uri).rstrip("/") or "runs"
        fix = f"set {key}=sqlite:///{path}{'' if path.endswith('.db') else '.db'}"
        raise _refused(key, uri, f"MLflow writes to no folder of files any more, unless {_FILE_STORE}=true", fix)


def _check_sqlite(key: str, uri: str, rest: str, driver: str) -> None:
    path = rest.lstrip("/").partition("?")[0]
    # The usual driver is named by the URI of a path with special characters.
    driver = driver.removeprefix("pysqlite")
    if path == ":memory:":
        raise _refused(key, uri, "memory is gone with the run", f"set {key}=sqlite:///runs.db")
    if driver or not path or not rest.startswith("///"):
        raise _refused(key, uri, "a file follows three slashes", f"set {key}=sqlite:///{path or 'runs.db'}")


def _check_driver(key: str, uri: str, kind: str, driver: str) -> None:
    drivers = _DRIVERS[kind]
    name = driver or _default_driver(kind)
    if name not in drivers:
        near = next(iter(get_close_matches(name, drivers, n=1)), _default_driver(kind))
        raise _refused(key, uri, f"drivers of {kind} are {', '.join(drivers)}", f"did you mean {kind}+{near}://?")
    if _is_installed(drivers[name]):
        return
    there = next((one for one, module in drivers.items() if _is_installed(module)), None)
    install = f"pip install '{_PACKAGES.get(name, name)}'"
    fix = f"write {kind}+{there}://, or {install}" if there else install
    raise _refused(key, uri, f"its driver {name} is not installed", fix)


def _default_driver(kind: str) -> str:
    """Returns the driver that SQLAlchemy takes where none is named."""
    if kind == "postgresql" and tuple(map(int, version("sqlalchemy").split(".")[:2])) >= (2, 1):
        return "psycopg"
    return next(iter(_DRIVERS[kind]))


def _check_server(key: str, uri: str, rest: str) -> None:
    try:
        host = urlsplit(uri).hostname
        port = urlsplit(uri).port
    except ValueError:
        raise _refused(key, uri, "its port is no number from 0 to 65535", "as http://host:5000") from None
    if not rest.startswith("//") or not host or port == 0 or re.search(r"\s", uri):
        raise _refused(key, uri, "it names no server", "as http://host:5000")


def _is_installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # of its parent
        return False


def _plugins() -> set[str]:
    return {one.name for one in entry_points(group="mlflow.tracking_store")}


def _refused(key: str, uri: str, why: str, fix: str | None) -> ConfigError:
    return invalid(key, shown(uri), problem=f"{why}; allowed are {_ALLOWED}", fix=fix or f"set {key}=sqlite:///<file>")

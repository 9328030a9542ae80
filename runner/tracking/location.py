"""Where runs are recorded: the tracking URI, and what is shown of it. Imports no MLflow."""

from __future__ import annotations

import hashlib
import os
import re
import shlex
import shutil
import socket
import sys
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import parse_qs, quote, unquote

from runner.host.late import late
from runner.host.secrets import TRACKING, reveal, without_userinfo
from runner.host.secrets import shown as shown  # what is shown of a location

if TYPE_CHECKING:
    from runner.tracking import serving
else:
    serving = late("runner.tracking.serving")

_SQLITE = "sqlite:///"
_BY_DRIVER = "sqlite+pysqlite:///"
# In a URI these begin a query or a quoted character, or look like a secret, which is masked.
_SPECIAL = re.compile(r"[?%#&;*]")
# Without processes for jobs of the GenAI side, and with one worker, MLflow's UI takes a fraction of its memory.
_LIGHT = "MLFLOW_DISABLE_TELEMETRY=true MLFLOW_SERVER_ENABLE_JOB_EXECUTION=false "


def default_uri(root: Path) -> str:
    """Returns the tracking URI that holds where the config names none.

    Args:
      root: the project's folder.

    Returns:
      $MLFLOW_TRACKING_URI if set, else the URI of `<root>/outputs/mlflow.db`, absolute.
    """
    given = os.environ.get("MLFLOW_TRACKING_URI", "").strip()
    return absolute(given) if given else sqlite_uri((root / "outputs" / "mlflow.db").absolute())


def tracking_uri(configured: str | None, root: Path) -> str:
    """Returns the URI to open, its secret in it.

    Args:
      configured: `tracking.uri`, which may be masked.
      root: the project's folder.

    Raises:
      ConfigError: it is masked, and its secret is not known here.
    """
    return absolute(reveal(TRACKING, configured)) if configured else default_uri(root)


def absolute(uri: str) -> str:
    """Returns the URI with a SQLite file's path made absolute, so that every process means the same file."""
    path = sqlite_path(uri)
    if path is None:
        return uri
    query = uri.partition("?")[2]
    options = "&".join(option for option in query.split("&") if option and not option.startswith("uri="))
    if options and "uri=" in query:  # options for SQLite itself, which it reads from such a URI only
        return uri
    opened = sqlite_uri(path)
    joint = "&" if "?" in opened else "?"
    return f"{opened}{joint}{options}" if options else opened


def sqlite_uri(path: Path) -> str:
    """Returns the URI by which SQLAlchemy, and so MLflow and Optuna, open a SQLite file.

    Args:
      path: absolute. If no character of it is special in a URI, it stays as it is.
    """
    text = path.as_posix()
    if not _SPECIAL.search(text):
        return f"{_SQLITE}{text}"
    # Without a driver, MLflow would create the folder of the quoted text.
    quoted = quote(text, safe="/:")
    return f"{_BY_DRIVER}{quoted}" if _unquotes() else f"{_BY_DRIVER}file:{quoted}?uri=true"


def sqlite_path(uri: str) -> Path | None:
    """Returns the absolute path of a SQLite URI's file; None for any other URI."""
    if not uri.startswith((_SQLITE, _BY_DRIVER)):
        return None
    name, _, query = uri.partition(":///")[2].partition("?")
    if _unquotes():
        name = unquote(name)
    if name.startswith("file:") and parse_qs(query).get("uri", [""])[-1].lower() in ("true", "1", "yes", "on"):
        # SQLite itself reads such a name as a URI.
        name = unquote(name.removeprefix("file:"))
        name = name.removeprefix("//") if name.startswith("///") else name
    if name in ("", ":memory:"):
        return None
    return Path(os.path.abspath(name))  # noqa: PTH100 - resolve() would follow links


def _unquotes() -> bool:
    """Returns whether SQLAlchemy reads `%3F` in the path of a database as a character; before 2.1 it does not."""
    major, minor = version("sqlalchemy").split(".")[:2]
    return (int(major), int(minor)) >= (2, 1)


def is_http(uri: str) -> bool:
    """Returns whether a tracking server stands behind the URI."""
    return uri.startswith(("http://", "https://"))


def host_and_port(uri: str) -> tuple[str, str]:
    """Returns the host and the port of a server's URI."""
    authority = without_userinfo(uri).partition("://")[2].partition("/")[0]
    host, _, port = authority.rpartition(":") if re.search(r":\d+$", authority) else (authority, "", "")
    return host.strip("[]"), port or ("443" if uri.startswith("https:") else "80")


def is_database(uri: str) -> bool:
    """Returns whether the URI names a database that this process opens itself."""
    return re.match(r"(sqlite|postgresql|mysql|mssql)(\+\w+)?://", uri) is not None


def fingerprint(uri: str) -> str:
    """Returns a digest by which a file can name a store; of a password it holds nothing that could be guessed from."""
    return hashlib.sha256(shown(uri).rstrip("/").encode()).hexdigest()[:16]


def ui_lines(uri: str, experiment_id: str, run_id: str, view: str | None = None) -> list[str]:
    """Returns where the run can be looked at, and for a store that nothing serves the command that serves it.

    Args:
      uri: the store's.
      experiment_id: of the run.
      run_id: the run.
      view: key of the columns that the list of runs opens with; null: MLflow's own.
    """
    runs = f"experiments/{experiment_id}/runs"
    columns = f"&viewStateShareKey={view}" if view else ""
    server = without_userinfo(uri).rstrip("/")
    serve = list[str]()
    if not is_http(uri):
        found = serving.find(run_id)
        port = free_port()
        server = found or f"http://127.0.0.1:{port}"
        serve = [] if found else [f"view with: {_ui_command(uri, port)}"]
    return [*serve, _page("run", server, f"{runs}/{run_id}"), _page("all runs", server, runs, columns)]


def free_port(first: int = 5000) -> int:
    """Returns the first port from `first` on that nothing on this machine listens on."""
    for port in range(first, first + 100):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    return first


def _page(what: str, server: str, path: str, more: str = "") -> str:
    return f"{what}: {server}/#/{path}?workflowType=machine_learning{more}"  # else the UI's GenAI view


def _ui_command(uri: str, port: int) -> str:
    program = "mlflow" if shutil.which("mlflow") else f"{shlex.quote(sys.executable)} -m mlflow"
    is_given = os.environ.get("MLFLOW_TRACKING_URI", "").strip() == uri
    store = '"$MLFLOW_TRACKING_URI"' if is_given and shown(uri) != uri else shlex.quote(shown(uri))
    setting = "" if os.name == "nt" else _LIGHT
    return f"{setting}{program} ui --backend-store-uri {store} --host 127.0.0.1 --port {port} --workers 1"

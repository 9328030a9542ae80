"""Tracking URI: where runs are recorded, and the links that are printed for it.

Imports no MLflow.
"""

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
from urllib.parse import parse_qs, quote, unquote

from runner.host.secrets import TRACKING, reveal, without_userinfo
from runner.host.secrets import shown as shown  # exported: messages show a location without its secrets

_SQLITE = "sqlite:///"
_SQLITE_WITH_DRIVER = "sqlite+pysqlite:///"
# In a URI these begin a query or a quoted character, or look like a secret, which is masked.
_SPECIAL_CHARACTERS = re.compile(r"[?%#&;*]")
# Turns off the UI's processes for GenAI jobs. With one worker, it then needs a fraction of its usual memory.
_UI_ENVIRONMENT = "MLFLOW_DISABLE_TELEMETRY=true MLFLOW_SERVER_ENABLE_JOB_EXECUTION=false "
# Without it MLflow 3 opens its GenAI view.
_WORKFLOW = "workflowType=machine_learning"
# Ports that are tried for a UI: `mlflow ui`'s default and those after it. If all are in use, the default is named.
_FIRST_PORT = 5000
_PORTS_TRIED = 100


def default_uri(root: Path) -> str:
    """Returns the tracking URI that applies if the config names none.

    Args:
      root: the project's folder.

    Returns:
      $MLFLOW_TRACKING_URI if set, else the URI of `<root>/outputs/mlflow.db`, absolute.
    """
    variable = os.environ.get("MLFLOW_TRACKING_URI", "").strip()
    if variable:
        return absolute(variable)
    return sqlite_uri((root / "outputs" / "mlflow.db").absolute())


def tracking_uri(configured: str | None, root: Path) -> str:
    """Returns the URI to open, with its secret.

    Args:
      configured: `tracking.uri`, whose secret may be masked.
      root: the project's folder.

    Raises:
      ConfigError: its secret is masked and not known to this process.
    """
    if configured:
        return absolute(reveal(TRACKING, configured))
    return default_uri(root)


def absolute(uri: str) -> str:
    """Returns the URI with the path of a SQLite file made absolute.

    So every process opens the same file.
    """
    path = sqlite_path(uri)
    if path is None:
        return uri
    query = uri.partition("?")[2]
    options = "&".join(option for option in query.split("&") if option and not option.startswith("uri="))
    if options and "uri=" in query:
        # These are options of SQLite itself, which it reads from such a URI only.
        return uri
    absolute_uri = sqlite_uri(path)
    if not options:
        return absolute_uri
    separator = "&" if "?" in absolute_uri else "?"
    return f"{absolute_uri}{separator}{options}"


def sqlite_uri(path: Path) -> str:
    """Returns the URI by which SQLAlchemy, MLflow and Optuna open a SQLite file.

    Args:
      path: absolute. It appears unchanged in the URI unless a character of it is special there.
    """
    text = path.as_posix()
    if not _SPECIAL_CHARACTERS.search(text):
        return f"{_SQLITE}{text}"
    quoted = quote(text, safe="/:")
    # The driver is named because MLflow would otherwise create the folder of the quoted path.
    if _sqlalchemy_unquotes():
        return f"{_SQLITE_WITH_DRIVER}{quoted}"
    return f"{_SQLITE_WITH_DRIVER}file:{quoted}?uri=true"


def sqlite_path(uri: str) -> Path | None:
    """Returns the absolute path of a SQLite URI's file; None for any other URI."""
    if not uri.startswith((_SQLITE, _SQLITE_WITH_DRIVER)):
        return None
    name, _, query = uri.partition(":///")[2].partition("?")
    if _sqlalchemy_unquotes():
        name = unquote(name)
    is_uri_option = parse_qs(query).get("uri", [""])[-1].lower()
    if name.startswith("file:") and is_uri_option in ("true", "1", "yes", "on"):
        # SQLite itself reads such a name as a URI.
        name = unquote(name.removeprefix("file:"))
        if name.startswith("///"):
            name = name.removeprefix("//")
    if name in ("", ":memory:"):
        return None
    return Path(os.path.abspath(name))  # noqa: PTH100 - resolve() would follow links


def _sqlalchemy_unquotes() -> bool:
    """Returns whether SQLAlchemy decodes `%3F` in a database's path: from 2.1 on."""
    major, minor = version("sqlalchemy").split(".")[:2]
    return (int(major), int(minor)) >= (2, 1)


def is_http(uri: str) -> bool:
    """Returns whether the URI is that of a tracking server."""
    return uri.startswith(("http://", "https://"))


def host_and_port(uri: str) -> tuple[str, str]:
    """Returns the host and the port of a server's URI."""
    authority = without_userinfo(uri).partition("://")[2].partition("/")[0]
    host = authority
    port = ""
    if re.search(r":\d+$", authority):
        host, _, port = authority.rpartition(":")
    default_port = "443" if uri.startswith("https:") else "80"
    return host.strip("[]"), port or default_port


def is_database(uri: str) -> bool:
    """Returns whether the URI names a database that this process opens itself."""
    return re.match(r"(sqlite|postgresql|mysql|mssql)(\+\w+)?://", uri) is not None


def fingerprint(uri: str) -> str:
    """Returns a digest by which a file can name a store.

    A password can't be guessed from it, for it is left out.
    """
    return hashlib.sha256(shown(uri).rstrip("/").encode()).hexdigest()[:16]


def ui_lines(uri: str, experiment_id: str, run_id: str) -> list[str]:
    """Returns links to the run, after the command that serves the store if needed."""
    lines = []
    if is_http(uri):
        server = without_userinfo(uri).rstrip("/")
    else:
        port = free_port()
        server = f"http://127.0.0.1:{port}"
        lines.append(f"view with: {_ui_command(uri, port)}")
    all_runs = f"{server}/#/experiments/{experiment_id}/runs"
    lines.append(f"run: {all_runs}/{run_id}?{_WORKFLOW}")
    lines.append(f"all runs: {all_runs}?{_WORKFLOW}")
    return lines


def free_port(first: int = _FIRST_PORT) -> int:
    """Returns the first port from `first` on that no process listens on."""
    for port in range(first, first + _PORTS_TRIED):
        with socket.socket() as probe:
            # Else a port whose connections were closed a minute ago would seem to be in use.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    return first


def _ui_command(uri: str, port: int) -> str:
    program = "mlflow"
    if shutil.which(program) is None:
        program = f"{shlex.quote(sys.executable)} -m mlflow"
    is_from_variable = os.environ.get("MLFLOW_TRACKING_URI", "").strip() == uri
    store = shlex.quote(shown(uri))
    if is_from_variable and shown(uri) != uri:
        # The command works when pasted and still shows no secret.
        store = '"$MLFLOW_TRACKING_URI"'
    environment = _UI_ENVIRONMENT
    if os.name == "nt":
        # Windows has no such prefix of a command.
        environment = ""
    return f"{environment}{program} ui --backend-store-uri {store} --host 127.0.0.1 --port {port} --workers 1"

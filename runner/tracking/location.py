"""Tracking URI: where runs are recorded, its check, and the links that are printed for it. Imports no MLflow."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shlex
import shutil
import sys
from importlib.metadata import entry_points
from pathlib import Path
from urllib.parse import quote, unquote

from runner.config.schema import TrackingConfig
from runner.errors import invalid
from runner.host.paths import project_root
from runner.host.secrets import TRACKING, reveal, without_userinfo
from runner.host.secrets import shown as shown  # exported: messages show a location without its secrets

MLFLOW = "mlflow"
VARIABLE = "MLFLOW_TRACKING_URI"
_EXPERIMENT = "MLFLOW_EXPERIMENT_NAME"
_RUN_NAME = "MLFLOW_RUN_NAME"
_RUN_CONTEXT = "MLFLOW_RUN_CONTEXT"
_DEFAULT_EXPERIMENT = "runner"
_FILE_STORE = "MLFLOW_ALLOW_FILE_STORE"
_FORMS = "sqlite:///<file>, http(s)://<server>, or a database such as postgresql+psycopg://<user>@<host>/<name>"
_SQLITE = "sqlite:///"
_SQLITE_WITH_DRIVER = "sqlite+pysqlite:///"
# In a URI these begin a query or a quoted character, or look like a secret, which is masked.
_SPECIAL_CHARACTERS = re.compile(r"[?%#&;*]")
# Without it MLflow 3 opens its GenAI view.
_WORKFLOW = "workflowType=machine_learning"
UI_HOST = "127.0.0.1"
UI_PORT = 5000
# The name of our view of charts, see `runner.tracking.start`.
VIEW = "runner"


def default_uri(root: Path) -> str:
    """Returns $MLFLOW_TRACKING_URI if set, else the URI of `<root>/outputs/mlflow.db`, absolute."""
    variable = os.environ.get(VARIABLE, "").strip()
    if variable:
        return absolute(variable)
    return sqlite_uri((root / "outputs" / "mlflow.db").absolute())


def tracking_uri(configured: str | None, root: Path) -> str:
    """Returns the URI to open, with its secret; raises ConfigError if that is masked and not known to this process."""
    if configured:
        return absolute(reveal(TRACKING, configured))
    return default_uri(root)


def experiment_name(configured: str | None) -> str:
    """Returns the configured experiment, else $MLFLOW_EXPERIMENT_NAME if set, else the default."""
    return configured or os.environ.get(_EXPERIMENT, "").strip() or _DEFAULT_EXPERIMENT


def run_name() -> str:
    """Returns $MLFLOW_RUN_NAME; empty if it is not set."""
    return os.environ.get(_RUN_NAME, "").strip()


def absolute(uri: str) -> str:
    """Returns the URI with the path of a SQLite file made absolute, so that every process opens the same file."""
    path = sqlite_path(uri)
    if path is None:
        return uri
    _, separator, query = uri.partition("?")
    return sqlite_uri(path) + separator + query


def sqlite_uri(path: Path) -> str:
    """Returns the URI by which SQLAlchemy, MLflow and Optuna open a SQLite file, given its absolute path."""
    text = path.as_posix()
    if not _SPECIAL_CHARACTERS.search(text):
        return f"{_SQLITE}{text}"
    # The driver is named because MLflow would otherwise create the folder of the quoted path.
    return f"{_SQLITE_WITH_DRIVER}{quote(text, safe='/:')}"


def sqlite_path(uri: str) -> Path | None:
    """Returns the absolute path of a SQLite URI's file; None for any other URI."""
    if not uri.startswith((_SQLITE, _SQLITE_WITH_DRIVER)):
        return None
    name = unquote(uri.partition(":///")[2].partition("?")[0])
    if name in ("", ":memory:"):
        return None
    return Path(os.path.abspath(name))  # noqa: PTH100 - resolve() would follow links


def is_http(uri: str) -> bool:
    """Returns whether the URI is that of a tracking server."""
    return uri.startswith(("http://", "https://"))


def is_database(uri: str) -> bool:
    """Returns whether the URI names a database that this process opens itself."""
    return re.match(r"(sqlite|postgresql|mysql|mssql)(\+\w+)?://", uri) is not None


def fingerprint(uri: str) -> str:
    """Returns a digest by which a file can name a store; no password can be guessed from it, as it is left out."""
    return hashlib.sha256(shown(uri).rstrip("/").encode()).hexdigest()[:16]


def ui_lines(uri: str, experiment_id: str, run_id: str, *, metric: str = "", lowest_first: bool = False) -> list[str]:
    """Returns links to a run, or to a sweep and its jobs by a metric, after the command that serves the store."""
    lines = []
    server = without_userinfo(uri).rstrip("/")
    if not is_http(uri):
        server = f"http://{UI_HOST}:{UI_PORT}"
        program = "runner" if shutil.which("runner") else f"{shlex.quote(sys.executable)} -m runner"
        of_store = "" if uri == default_uri(project_root()) else f" uri={shlex.quote(shown(uri))}"
        lines.append(f"view with: {program} ui{of_store}")
    all_runs = f"{server}/#/experiments/{experiment_id}/runs"
    if metric:
        jobs = quote(f"tags.mlflow.parentRunId = '{run_id}'", safe="")
        # Sorted by time, as by default, the jobs would be nested in their sweep, collapsed, and none would be drawn.
        order = quote(f"metrics.`{metric}`", safe="")
        jobs = f"{all_runs}?{_WORKFLOW}&searchFilter={jobs}&orderByKey={order}&orderByAsc={str(lowest_first).lower()}"
        lines.append(f"sweep: {all_runs}/{run_id}?{_WORKFLOW}")
        # With a filter, MLflow ignores our view of charts and makes its own.
        return [*lines, f"jobs: {jobs}", f"charts: {jobs}&compareRunsMode=CHART"]
    lines.append(f"run: {all_runs}/{run_id}?{_WORKFLOW}")
    lines.append(f"all runs: {all_runs}?{_WORKFLOW}")
    lines.append(f"charts: {all_runs}?{_WORKFLOW}&compareRunsMode=CHART&viewStateShareKey={VIEW}")
    return lines


def check(config: TrackingConfig) -> None:
    """Rejects an invalid tracking URI, or invalid tags of the environment. Raises ConfigError."""
    if MLFLOW not in config.writers:
        return
    context = os.environ.get(_RUN_CONTEXT)
    if context is not None:
        try:
            is_mapping = isinstance(json.loads(context), dict)
        except ValueError:
            is_mapping = False
        if not is_mapping:
            fix = f'export {_RUN_CONTEXT}=\'{{"note": "quick"}}\''
            raise invalid(_RUN_CONTEXT, context or "''", problem="must be a JSON object of tags", fix=fix)
    variable = os.environ.get(VARIABLE, "").strip()
    if config.uri is not None:
        _check(TRACKING, config.uri)
    elif variable:
        _check(VARIABLE, variable)


def _check(key: str, uri: str) -> None:
    scheme, _, rest = uri.partition("://")
    plugins = {"databricks"} | entry_points(group="mlflow.tracking_store").names
    if scheme.partition("+")[0] == "sqlite":
        is_known = sqlite_path(uri) is not None
    elif "://" in uri and scheme != "file":
        is_known = rest != "" and (is_http(uri) or is_database(uri) or scheme in plugins)
    else:
        # `C:\\runs`, `./runs` and `host:5000` have no scheme.
        is_folder = uri.strip() != "" and os.environ.get(_FILE_STORE, "").lower() in ("true", "1")
        is_known = uri == "databricks" or is_folder
    if not is_known:
        problem = f"is no tracking URI (a folder of files needs {_FILE_STORE}=true)"
        raise invalid(key, shown(uri) or "''", problem=problem, fix=f"write {_FORMS}")

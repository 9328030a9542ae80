"""How MLflow is imported: late, quiet, without telemetry, and quick to notice that a server is away.

Importing `runner.tracking`, or any module in it, sets what MLflow reads as it is imported.
"""

from __future__ import annotations

import logging
import os
import sys

from runner.host import stages
from runner.host.secrets import scrub


def quiet() -> None:
    """Keeps MLflow, which is imported, from printing pages and passwords."""
    logging.getLogger("alembic").setLevel(logging.WARNING)
    # It prints a traceback for every attempt at a full disk or a locked file, of which we say one line.
    logging.getLogger("mlflow.store.db.utils").setLevel(logging.CRITICAL)
    for handler in logging.getLogger("mlflow").handlers:
        handler.addFilter(_mask)


def _mask(record: logging.LogRecord) -> bool:
    """Takes secrets of URIs out of what MLflow logs, which goes to stderr."""
    record.msg = scrub(record.getMessage())
    record.args = None
    if record.exc_info:
        record.exc_text = scrub(logging.Formatter().formatException(record.exc_info))
    return True


def warn(message: str) -> None:
    """Prints one line on stderr, without secrets."""
    stages.leave_line()
    print(f"tracking: {scrub(message)}", file=sys.stderr, flush=True)


def set_environment() -> None:
    """Sets what MLflow reads as it is imported."""
    os.environ["MLFLOW_DISABLE_TELEMETRY"] = "true"
    os.environ["DO_NOT_TRACK"] = "true"
    os.environ.setdefault("MLFLOW_LOGGING_LEVEL", "WARNING")
    os.environ.setdefault("MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR", "false")
    # MLflow prints its server's address as it is, a password in it too; the runner says itself where a run is.
    os.environ["MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT"] = "true"
    # MLflow would try for some ten minutes before it says that a server is away; the writer has its own patience.
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "8")

"""MLflow without telemetry or log noise, with short timeouts.

Importing `runner.tracking`, or any module in it, sets the variables that MLflow reads as it is imported.
"""

from __future__ import annotations

import logging
import os
import sys

from runner.host import stages
from runner.host.secrets import scrub


def quiet() -> None:
    """Keeps the import of MLflow from printing pages of text and passwords."""
    logging.getLogger("alembic").setLevel(logging.WARNING)
    # It prints a traceback for each failed attempt on a full disk or a locked file, for which we print one line.
    logging.getLogger("mlflow.store.db.utils").setLevel(logging.CRITICAL)
    for handler in logging.getLogger("mlflow").handlers:
        handler.addFilter(_mask_secrets)


def _mask_secrets(record: logging.LogRecord) -> bool:
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
    """Sets the variables that MLflow reads as it is imported; those that are only defaults can be overridden."""
    os.environ["MLFLOW_DISABLE_TELEMETRY"] = "true"
    os.environ["DO_NOT_TRACK"] = "true"
    os.environ.setdefault("MLFLOW_LOGGING_LEVEL", "WARNING")
    os.environ.setdefault("MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR", "false")
    # MLflow prints its server's address with any password in it. The runner prints where a run is recorded itself.
    os.environ["MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT"] = "true"
    # With its defaults MLflow retries for about ten minutes before it reports that a server is unavailable. Here
    # `runner.tracking.writer` retries, and buffers meanwhile.
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "8")

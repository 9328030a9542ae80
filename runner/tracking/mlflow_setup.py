"""MLflow as a library: without telemetry or log noise, with short timeouts and short errors.

Importing `runner.tracking`, or any module in it, sets the variables that MLflow reads as it is imported.
"""

from __future__ import annotations

import logging
import os
import re
import sys

from runner.host import stages
from runner.host.secrets import scrub

# Characters of an unknown error that are shown: enough for its first sentence, and one or two lines of a terminal.
_MAX_LENGTH = 160
NOT_MLFLOW = "the response is not MLflow's"


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


def reason(error: BaseException) -> str:
    """Returns an error's cause in a few words, without secrets, SQL and pages of HTML.

    MLflow, SQLAlchemy, requests and drivers share no class of errors, so this goes by their text.
    """
    if isinstance(error, OSError) and error.strerror:
        return error.strerror if error.filename is None else f"{error.strerror}: {error.filename}"
    code = http_code(error)
    if code is not None:
        return f"the server responds with HTTP status {code}"
    text = " ".join(scrub(str(error)).split())
    if "not in a valid JSON format" in text:
        return NOT_MLFLOW
    # SQLAlchemy appends the statement and a link; MLflow appends the body of the response.
    text = re.split(r" ?\[SQL: | ?\(Background on this error|\. Response body: ", text)[0]
    # requests and urllib3 wrap the cause, and say which object failed.
    text = re.sub(r"^.* \(Caused by (.*)\)$", r"\1", text)
    text = re.sub(r"^.*\[Errno -?\d+\] ([\w ]+).*$", r"\1", text)
    # SQLAlchemy puts the driver's class in front, as `(sqlite3.OperationalError) `.
    text = re.sub(r"^(\([\w.]+\) )+", "", text)
    if len(text) > _MAX_LENGTH:
        text = text[:_MAX_LENGTH] + "..."
    return text or type(error).__name__


def http_code(error: BaseException) -> int | None:
    """Returns the HTTP status of a response that is not MLflow's own; None for any other error."""
    match = re.search(r"failed with error code (\d{3}) |too many (\d{3}) error responses", str(error))
    return None if match is None else int(match[1] or match[2])

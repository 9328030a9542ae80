"""Short reasons for errors of MLflow, SQLAlchemy, requests or a driver, without SQL and pages of HTML."""

from __future__ import annotations

import re

from runner.host.secrets import scrub

# Characters of an unknown error that are shown: enough for its first sentence, and one or two lines of a terminal.
_MAX_LENGTH = 160
# Innermost causes, in the words of the library. What surrounds them may take pages.
_KNOWN_CAUSES = (
    "Connection refused",
    "timed out",
    "Name or service not known",
    "Connection reset",
    "Connection broken",
    "Connection aborted",
    "No route to host",
    "database is locked",
    "database or disk is full",
    "attempt to write a readonly database",
    "unable to open database file",
    "disk I/O error",
    "file is not a database",
    "database disk image is malformed",
    "password authentication failed",
    "Access denied",
)
NOT_MLFLOW = "the response is not MLflow's"


def reason(error: BaseException) -> str:
    """Returns an error's innermost cause in a few words, without secrets."""
    if isinstance(error, OSError) and error.strerror:
        if error.filename is None:
            return error.strerror
        return f"{error.strerror}: {error.filename}"
    text = " ".join(scrub(str(error)).split())
    for cause in _KNOWN_CAUSES:
        if cause in text:
            return cause
    code = http_code(error)
    if code is not None:
        return f"the server responds with HTTP status {code}"
    if "not in a valid JSON format" in text:
        return NOT_MLFLOW
    # SQLAlchemy appends the statement and a link; MLflow appends the body of the response.
    text = re.split(r" ?\[SQL: | ?\(Background on this error|\. Response body: ", text)[0]
    # requests and urllib3 wrap the cause.
    text = re.sub(r"^.* \(Caused by (.*)\)$", r"\1", text)
    # SQLAlchemy puts the driver's class in front, as `(sqlite3.OperationalError) `.
    text = re.sub(r"^(\([\w.]+\) )+", "", text)
    if len(text) > _MAX_LENGTH:
        text = text[:_MAX_LENGTH] + "..."
    return text or type(error).__name__


def http_code(error: BaseException) -> int | None:
    """Returns the HTTP status of a response that is not MLflow's own; None for any other error."""
    match = re.search(r"failed with error code (\d{3}) |too many (\d{3}) error responses", str(error))
    return None if match is None else int(match[1] or match[2])

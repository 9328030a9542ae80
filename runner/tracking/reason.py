"""Words an error of MLflow, SQLAlchemy, requests or a driver in few words, without SQL or a page of HTML."""

from __future__ import annotations

import re

from runner.host.secrets import scrub

_LONGEST = 160
_KNOWN = (
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


def reason(error: BaseException) -> str:
    """Returns an error's innermost cause in a few words, without secrets."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror if error.filename is None else f"{error.strerror}: {error.filename}"
    text = " ".join(scrub(str(error)).split())
    known = next((one for one in _KNOWN if one in text), None)
    if known is not None:
        return known
    code = http_code(error)
    if code is not None:
        return f"it answers with HTTP status {code}"
    if "not in a valid JSON format" in text:
        return "it answers with something else than MLflow does"
    text = re.split(r" ?\[SQL: | ?\(Background on this error|\. Response body: ", text)[0]
    text = re.sub(r"^(\([\w.]+\) )+", "", re.sub(r"^.* \(Caused by (.*)\)$", r"\1", text))
    return (text[:_LONGEST] + "...") if len(text) > _LONGEST else text or type(error).__name__


def http_code(error: BaseException) -> int | None:
    """Returns the HTTP status of an answer that is none of MLflow's own; None for any other error."""
    found = re.search(r"failed with error code (\d{3}) |too many (\d{3}) error responses", str(error))
    return int(found.group(1) or found.group(2)) if found else None

"""Passwords in URIs: masked wherever a URI is shown or stored, and revealed to the code that opens the URI.

A secret is removed from the command line and from the composed config before anything is printed or written. It is
kept in an environment variable of this process and of those that it starts. Only code that opens a store asks for it.

SQLAlchemy's `URL.render_as_string(hide_password=True)` is not a replacement. It masks the password before the host and
nothing else: the end of a password with an unescaped `@`, tokens in place of a user, and secrets in the query
(`password=`, `odbc_connect=`) stay readable. Of 13 forms in tests/tracking/test_tracking_secrets.py it masks 3.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from urllib.parse import unquote, unquote_plus

from runner.errors import invalid

MASK = "***"
# The keys whose values are opened as URIs.
TRACKING = "tracking.uri"
STUDIES = "hydra.sweeper.storage"
# JSON: masked URI to URI.
_VARIABLE = "RUNNER_SECRET_URIS"
# Characters of a secret that is searched for in texts that are not URIs. A shorter one is in any text by chance, and
# masking it there would destroy messages.
SHORTEST = 4
# Databases, where a name without a password is a user's and no token.
_USER_ONLY = re.compile(r"(sqlite|postgres|postgresql|mysql|mariadb|mssql|oracle)(\+\w+)?$")
# Schemes of files, whose paths may have an `@`.
_LOCAL = re.compile(r"(sqlite|file)(\+\w+)?$")
SCHEME = re.compile(r"([A-Za-z][\w+.-]*)://")
_PARAMETER = re.compile(r"[?&;#]([^=&;#?]*)=")
SECRET_NAME = re.compile(
    r"pass|pwd|secret|token|credential|authorization|^auth$|(access|api|account|private|shared)[-_.]?key|^key$"
    r"|^sig$|signature|odbc_connect",
    re.IGNORECASE,
)
_URI = re.compile(r"[A-Za-z][\w+.-]*://[^\s'\"]*")


def shown(uri: str) -> str:
    """Returns the URI with `***` for each password, token or key.

    In doubt a part is masked: a password may have any character, also those that end it in a URI.

    >>> shown("postgresql://ann:p@ss/word@host/db?sslpassword=x&a=b")
    'postgresql://ann:***@host/db?sslpassword=***&a=b'
    """
    masked = ""
    done = 0
    for start, end in secrets_in(uri):
        masked += uri[done:start] + MASK
        done = end
    return masked + uri[done:]


def secrets_in(uri: str) -> list[tuple[int, int]]:
    """Returns start and end of each secret in a URI, in order and without overlap."""
    joined: list[tuple[int, int]] = []
    for start, end in sorted([*_in_userinfo(uri), *_in_query(uri)]):
        if joined and start < joined[-1][1]:
            joined[-1] = (joined[-1][0], max(end, joined[-1][1]))
        elif start < end:
            joined.append((start, end))
    return joined


def _in_userinfo(uri: str) -> Iterator[tuple[int, int]]:
    """Yields start and end of the password or token before the host."""
    scheme = ""
    first = 0
    match = SCHEME.match(uri)
    if match:
        scheme = match[1]
        first = match.end()
    at = uri.rfind("@")
    if at < first or (_LOCAL.match(scheme) and uri[first : first + 1] == "/"):
        return
    user, colon, password = uri[first:at].partition(":")
    if match and not _USER_ONLY.match(scheme) and password in ("", "x-oauth-basic"):
        yield first, at  # a token
    elif colon:
        yield first + len(user) + 1, at


def _in_query(uri: str) -> Iterator[tuple[int, int]]:
    """Yields start and end of the values of parameters with a secret's name."""
    for parameter in _PARAMETER.finditer(uri):
        if SECRET_NAME.search(unquote_plus(parameter[1])):
            end = uri.find("&", parameter.end())
            if end < 0:
                end = len(uri)
            yield parameter.end(), end


def hide(uri: str) -> str:
    """Returns a URI with its secrets masked; `reveal` returns the original in this process and its children."""
    masked = shown(uri)
    if masked != uri:
        os.environ[_VARIABLE] = json.dumps(_hidden() | {masked: uri})
    return masked


def reveal(key: str, uri: str) -> str:
    """Returns the original of a URI that `hide` may have masked; a ConfigError says that it is not known here."""
    if MASK not in uri:
        return uri
    known = _known()
    if uri in known:
        return known[uri]
    is_web = key == TRACKING and uri.startswith(("http://", "https://"))
    if is_web and os.environ.get("MLFLOW_TRACKING_USERNAME") and os.environ.get("MLFLOW_TRACKING_PASSWORD"):
        return without_userinfo(uri)
    fix = f"type {key} again with it"
    if key == TRACKING:
        fix += " or set MLFLOW_TRACKING_URI"
    if is_web:
        fix += ", or MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD"
    raise invalid(key, uri, problem="the password or token at *** is never stored", fix=fix)


def without_userinfo(uri: str) -> str:
    """Returns a web address without user, password and query, as a browser opens it."""
    scheme, separator, rest = shown(uri).partition("://")
    return scheme + separator + re.split("[?#]", rest.rpartition("@")[2])[0]


def without_known(text: str) -> str:
    """Returns a text with every URI masked that has a secret which this process knows."""
    for masked, uri in _known().items():
        text = text.replace(uri, masked)
    return text


def scrub(text: str, uri: str = "") -> str:
    """Returns a text, such as a library's error, without the secrets of URIs in it, of `uri`, and known ones."""
    text = without_known(text)
    for masked, original in (_known() | {shown(uri): uri}).items():
        for start, end in secrets_in(original):
            secret = original[start:end]
            # Libraries print a password as it was typed, or decoded.
            for form in {secret, unquote(secret)}:
                # A secret that is also another part of its URI, such as the user's name, is in many texts.
                if len(form) >= SHORTEST and form not in masked:
                    text = text.replace(form, MASK)
    return _URI.sub(lambda match: shown(match[0]), text)


def _hidden() -> dict[str, str]:
    """Returns the URIs that `hide` has masked, in this process or in those that started it, by their masked form."""
    uris: dict[str, str] = json.loads(os.environ.get(_VARIABLE) or "{}")
    return uris


def _known() -> dict[str, str]:
    """Returns every URI with a secret that this process knows, by its masked form."""
    known = _hidden()
    from_environment = os.environ.get("MLFLOW_TRACKING_URI", "").strip()
    if shown(from_environment) != from_environment:
        known[shown(from_environment)] = from_environment
    return known

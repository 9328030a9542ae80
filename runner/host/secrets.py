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
import sys
from collections.abc import Iterator, Sequence
from typing import Any
from urllib.parse import unquote, unquote_plus

from omegaconf import Container, DictConfig, OmegaConf, flag_override, open_dict, read_write
from omegaconf.errors import OmegaConfBaseException

from runner.errors import invalid
from runner.host import quoting, session

MASK = "***"
# The keys whose values are opened as URIs.
TRACKING = "tracking.uri"
STUDIES = "hydra.sweeper.storage"
# JSON: masked URI to URI.
_VARIABLE = "RUNNER_SECRET_URIS"
# Characters of a secret that is searched for in texts that are not URIs. A shorter one is in any text by chance, and
# masking it there would destroy messages.
_MIN_SECRET = 4
# Databases, where a name without a password is a user's and no token.
_USER_ONLY = re.compile(r"(sqlite|postgres|postgresql|mysql|mariadb|mssql|oracle)(\+\w+)?$")
# Schemes of files, whose paths may have an `@`.
_LOCAL = re.compile(r"(sqlite|file)(\+\w+)?$")
_SCHEME = re.compile(r"([A-Za-z][\w+.-]*)://")
_PARAMETER = re.compile(r"[?&;#]([^=&;#?]*)=")
_SECRET_NAME = re.compile(
    r"pass|pwd|secret|token|credential|authorization|^auth$|(access|api|account|private|shared)[-_.]?key|^key$"
    r"|^sig$|signature|odbc_connect",
    re.IGNORECASE,
)
_URI = re.compile(r"[A-Za-z][\w+.-]*://[^\s'\"]*")
_VARIABLE_NAME = re.compile(r"\$\{oc\.env:([^},]*)")
# Keys whose value is a secret; narrower than names of parameters, because `tokens` and `tokenizer` are keys.
_SECRET_KEY = re.compile(
    r"(^|[_-])(pass(word|wd|phrase)?|pw|pwd|secret|credentials?)$|^token$"
    r"|(access|account|api|auth|bearer|hf|hub|private|secret|session)[_-]?(key|token)$",
    re.IGNORECASE,
)


def shown(uri: str) -> str:
    """Returns the URI with `***` for each password, token or key.

    In doubt a part is masked: a password may have any character, also those that end it in a URI.

    >>> shown("postgresql://ann:p@ss/word@host/db?sslpassword=x&a=b")
    'postgresql://ann:***@host/db?sslpassword=***&a=b'
    """
    masked = ""
    done = 0
    for start, end in _secrets(uri):
        masked += uri[done:start] + MASK
        done = end
    return masked + uri[done:]


def _secrets(uri: str) -> list[tuple[int, int]]:
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
    match = _SCHEME.match(uri)
    scheme = match[1] if match else ""
    first = match.end() if match else 0
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
        if _SECRET_NAME.search(unquote_plus(parameter[1])):
            end = uri.find("&", parameter.end())
            yield parameter.end(), len(uri) if end < 0 else end


def hide(uri: str) -> str:
    """Returns a URI with its secrets masked; `reveal` returns the original in this process and its children."""
    masked = shown(uri)
    if masked != uri:
        os.environ[_VARIABLE] = json.dumps(_hidden() | {masked: uri})
    return masked


def reveal(key: str, uri: str) -> str:
    """Returns the original of a URI that `hide` may have masked, now or in an earlier run.

    Raises:
      ConfigError: names the config key; the URI's secret is not known here.
    """
    if MASK not in uri:
        return uri
    known = _known()
    if uri in known:
        return known[uri]
    is_web = key == TRACKING and uri.startswith(("http://", "https://"))
    if is_web and os.environ.get("MLFLOW_TRACKING_USERNAME") and os.environ.get("MLFLOW_TRACKING_PASSWORD"):
        return without_userinfo(uri)
    variable = " or set MLFLOW_TRACKING_URI" if key == TRACKING else ""
    more = ", or MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD" if is_web else ""
    problem = "the password or token at *** is never stored"
    raise invalid(key, uri, problem=problem, fix=f"type {key} again with it{variable}{more}")


def without_userinfo(uri: str) -> str:
    """Returns a web address without user, password and query, as a browser opens it."""
    scheme, separator, rest = shown(uri).partition("://")
    return scheme + separator + re.split("[?#]", rest.rpartition("@")[2])[0]


def hide_arguments(arguments: Sequence[str]) -> list[str]:
    """Returns a command line with its URIs masked; `reveal` returns the originals."""
    return [_hide_argument(argument) for argument in arguments]


def _hide_argument(argument: str) -> str:
    head, equals, value = argument.partition("=")
    # Of a list or a mapping there is no URI. The check of the config rejects it, and masks it in the message.
    if not equals or head.lstrip("+") not in (TRACKING, STUDIES) or "${" in value or value.startswith(("[", "{")):
        return argument
    plain = quoting.unquoted(value)
    masked = hide(plain)
    return argument if masked == plain else f"{head}={quoting.quoted(masked)}"


def hide_config(config: DictConfig) -> None:
    """Masks the URIs of a composed config, its `hydra` node included, before Hydra writes it; changes it in place."""
    # A text with a password beside an interpolation, in which no known URI is found -> what replaces it.
    replaced: dict[str, str] = {}
    for key in (TRACKING, STUDIES):
        group, _, name = key.rpartition(".")
        node = OmegaConf.select(config, group)
        if not isinstance(node, DictConfig) or name not in node:
            continue
        try:
            uri = node[name]
        except OmegaConfBaseException:
            # The check of the config names the interpolation that fails.
            continue
        typed = str(OmegaConf.to_container(node, resolve=False)[name])  # type: ignore[index,call-overload]
        if shown(typed) != typed:
            replaced[typed] = shown(typed)
        if isinstance(uri, str) and hide(uri) != uri:
            with read_write(node), open_dict(node):
                node[name] = shown(uri)

    def masked(text: str) -> str:
        text = _masked(text)
        for typed, shorter in replaced.items():
            text = text.replace(typed, shorter)
        return text

    overrides = config.hydra.overrides
    job = config.hydra.job
    with read_write(overrides), read_write(job):
        for node, name in ((overrides, "task"), (overrides, "hydra"), (job, "override_dirname")):
            value = OmegaConf.to_container(node, resolve=False)[name]  # type: ignore[index,call-overload]
            node[name] = masked(value) if isinstance(value, str) else [masked(str(text)) for text in value]
    # Libraries may record sys.argv.
    sys.argv[1:] = map(masked, sys.argv[1:])
    command = session.current()
    command.arguments = tuple(map(masked, command.arguments))


def mask_printed(config: DictConfig) -> None:
    """Masks the secrets of a config that is only printed, whatever preset, override or interpolation brings them.

    Those are passwords and tokens of URIs, and values of keys and of environment variables that are named as a secret
    is. They are masked at every place; interpolations that lead to one are replaced. Changes the config in place.
    """
    entries: list[tuple[Container, Any, str]] = []
    found: set[str] = set()
    for node, key in _entries(config):
        raw = str(node._get_node(key)._value())  # type: ignore[union-attr]
        try:
            value = node[key]
        except (OmegaConfBaseException, ValueError):
            value = raw  # it is printed as it is
        if value is None or isinstance(value, bool | Container):
            continue
        text = str(value)
        entries.append((node, key, text))
        if _SCHEME.match(text):
            found |= {text[start:end] for start, end in _secrets(text)}
        if _SECRET_KEY.search(str(key)):
            found.add(text)
        for name in _VARIABLE_NAME.findall(raw):
            if _SECRET_NAME.search(name):
                found.add(os.environ.get(name, ""))
    # Longer ones first: one may be a part of another.
    longest = sorted((secret for secret in found if len(secret) >= _MIN_SECRET), key=len, reverse=True)
    anywhere = re.compile("|".join(rf"(?<!\w){re.escape(secret)}(?!\w)" for secret in longest) or r"(?!)")
    for node, key, text in entries:
        masked = MASK
        if not _SECRET_KEY.search(str(key)):
            # A text that begins as a URI is one to its end: a password may have any character.
            masked = scrub(anywhere.sub(MASK, shown(text) if _SCHEME.match(text) else text))
        if masked != text:
            with flag_override(config, ["struct", "readonly"], False):
                node[key] = masked


def _entries(node: Any) -> Iterator[tuple[Container, Any]]:
    """Yields node and key of each value below a node that is no container."""
    for key in list(node) if isinstance(node, DictConfig) else range(len(node)):
        child = node._get_node(key)
        is_special = child._is_none() or child._is_interpolation() or child._is_missing()
        if isinstance(child, Container) and not is_special:
            yield from _entries(child)
        else:
            yield node, key


def _masked(text: str) -> str:
    """Returns a text with every URI masked that has a secret which this process knows."""
    for masked, uri in _known().items():
        text = text.replace(uri, masked)
    return text


def scrub(text: str, uri: str = "") -> str:
    """Returns a text, such as a library's error, without the secrets of URIs in it, of `uri`, and known ones."""
    text = _masked(text)
    for masked, original in (_known() | {shown(uri): uri}).items():
        for start, end in _secrets(original):
            secret = original[start:end]
            # Libraries print a password as it was typed, or decoded.
            for form in {secret, unquote(secret)}:
                # A secret that is also another part of its URI, such as the user's name, is in many texts.
                if len(form) >= _MIN_SECRET and form not in masked:
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

"""Passwords in URIs: what may be shown and stored of a URI, and how the whole one reaches what opens it.

A secret is taken out of the command line and of the composed config before anything is printed or written, and waits
in an environment variable of this process and of those that it starts. Only what opens a store asks for it.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterator, Sequence
from urllib.parse import unquote, unquote_plus

from omegaconf import DictConfig, OmegaConf, open_dict, read_write

from runner.errors import invalid
from runner.host import session

MASK = "***"
# the keys whose values are opened
TRACKING = "tracking.uri"
STUDIES = "hydra.sweeper.storage"
_VARIABLE = "RUNNER_SECRET_URIS"  # JSON: what is shown of a URI -> the URI
_SHORTEST = 4  # characters of a secret that is looked for in texts that are no URIs; fewer are in any text
_USER_ONLY = re.compile(r"(sqlite|postgres|postgresql|mysql|mariadb|mssql|oracle)(\+\w+)?$")  # not a token
_LOCAL = re.compile(r"(sqlite|file)(\+\w+)?$")
_SCHEME = re.compile(r"[A-Za-z][\w+.-]*$")
_PARAMETER = re.compile(r"[?&;#]([^=&;#?]*)=")
_SECRET_NAME = re.compile(
    r"pass|pwd|secret|token|credential|authorization|^auth$|(access|api|account|private|shared)[-_.]?key|^key$"
    r"|^sig$|signature|odbc_connect",
    re.IGNORECASE,
)
_URI = re.compile(r"[A-Za-z][\w+.-]*://[^\s'\"]*")


def shown(uri: str) -> str:
    """Returns the URI with `***` for its password, token or key, wherever it has one.

    What can't be told apart is masked: a password may hold any character, also those that end it in a URI.

    >>> shown("postgresql://ann:p@ss/word@host/db?sslpassword=x&a=b")
    'postgresql://ann:***@host/db?sslpassword=***&a=b'
    """
    parts = []
    done = 0
    for start, end in _secrets(uri):
        parts += [uri[done:start], MASK]
        done = end
    return "".join(parts) + uri[done:]


def _secrets(uri: str) -> list[tuple[int, int]]:
    """Returns where a URI holds secrets, in order and apart from each other."""
    found = [*_in_userinfo(uri), *_in_query(uri)]
    joined: list[tuple[int, int]] = []
    for start, end in sorted(one for one in found if one[0] < one[1]):
        if joined and start < joined[-1][1]:
            joined[-1] = (joined[-1][0], max(end, joined[-1][1]))
        else:
            joined.append((start, end))
    return joined


def _in_userinfo(uri: str) -> Iterator[tuple[int, int]]:
    scheme, separator, _ = uri.partition("://")
    if not separator or not _SCHEME.match(scheme):
        scheme = separator = ""
    first = len(scheme + separator)
    at = uri.rfind("@")
    if at < first or (_LOCAL.match(scheme) and uri[first : first + 1] == "/"):
        return
    user, colon, password = uri[first:at].partition(":")
    is_token = bool(separator) and not _USER_ONLY.match(scheme) and password in ("", "x-oauth-basic")
    if is_token:
        yield first, at
    elif colon:
        yield first + len(user) + 1, at


def _in_query(uri: str) -> Iterator[tuple[int, int]]:
    for found in _PARAMETER.finditer(uri):
        if _SECRET_NAME.search(unquote_plus(found[1])):
            end = uri.find("&", found.end())
            yield found.end(), len(uri) if end < 0 else end


def hide(uri: str) -> str:
    """Returns what is shown of a URI, from which `reveal` gives the whole one in this process and its children."""
    masked = shown(uri)
    if masked != uri:
        os.environ[_VARIABLE] = json.dumps(_hidden() | {masked: uri})
    return masked


def reveal(key: str, uri: str) -> str:
    """Returns the whole URI of one that may have been masked.

    Args:
      key: dotted config key, for the refusal.
      uri: as `hide` returned it, now or in an earlier run; or any other, which comes back as it is.

    Raises:
      ConfigError: its secret is not known here.
    """
    if MASK not in uri:
        return uri
    if uri in (known := _known()):
        return known[uri]
    is_web = key == TRACKING and uri.startswith(("http://", "https://"))
    if is_web and os.environ.get("MLFLOW_TRACKING_USERNAME") and os.environ.get("MLFLOW_TRACKING_PASSWORD"):
        return without_userinfo(uri)
    variable = " or set MLFLOW_TRACKING_URI" if key == TRACKING else ""
    more = ", or MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD" if is_web else ""
    raise invalid(
        key,
        uri,
        problem="what stands at *** is a secret, which is never stored",
        fix=f"type {key} again with it{variable}{more}",
    )


def without_userinfo(uri: str) -> str:
    """Returns a URI of the web without user, password and query, as a browser opens it."""
    scheme, separator, rest = shown(uri).partition("://")
    return scheme + separator + re.split("[?#]", rest.rpartition("@")[2])[0]


def hide_arguments(arguments: Sequence[str]) -> list[str]:
    """Returns a command line whose URIs are masked; `reveal` gives the whole ones."""
    return [_hide_argument(one) for one in arguments]


def _hide_argument(argument: str) -> str:
    head, equals, value = argument.partition("=")
    if not equals or head.lstrip("+") not in (TRACKING, STUDIES) or "${" in value:
        return argument
    if value.startswith(("[", "{")):  # refused, and masked where that is printed
        return argument
    plain = value.strip()
    if len(plain) > 1 and plain[0] == plain[-1] and plain[0] in "'\"":
        plain = plain[1:-1].replace(f"\\{plain[0]}", plain[0])
    masked = hide(plain)
    quoted = masked.replace("'", "\\'")
    return argument if masked == plain else f"{head}='{quoted}'"


def hide_config(config: DictConfig) -> None:
    """Masks the URIs of a composed config, whatever file or override they come from, before Hydra writes it.

    Args:
      config: with the `hydra` node, changed in place.
    """
    for key in (TRACKING, STUDIES):
        group, _, name = key.rpartition(".")
        node = OmegaConf.select(config, group)
        written = node._get_node(name) if isinstance(node, DictConfig) and name in node else None
        uri = written._value() if written is not None else None
        if isinstance(uri, str) and "${" not in uri and hide(uri) != uri:
            with read_write(node), open_dict(node):
                node[name] = shown(uri)
    overrides = config.hydra.overrides
    job = config.hydra.job
    with read_write(overrides), read_write(job):
        for node, name in ((overrides, "task"), (overrides, "hydra"), (job, "override_dirname")):
            node[name] = _masked_node(OmegaConf.to_container(node, resolve=False)[name])  # type: ignore[index,call-overload]
    # Libraries may record sys.argv.
    sys.argv[1:] = [_masked(argument) for argument in sys.argv[1:]]
    command = session.current()
    command.arguments = tuple(_masked(argument) for argument in command.arguments)


def _masked_node(written: list[str] | str) -> list[str] | str:
    return _masked(written) if isinstance(written, str) else [_masked(str(one)) for one in written]


def _masked(text: str) -> str:
    """Returns a text with every URI masked whose secret this process knows."""
    for masked, uri in _known().items():
        text = text.replace(uri, masked)
    return text


def scrub(text: str, uri: str = "") -> str:
    """Returns a text, as a library's error, without secrets.

    Args:
      text: loses the secrets that this process knows, and those of any URI in it.
      uri: whose secrets it loses besides.
    """
    text = _masked(text)
    for masked, whole in (_known() | {shown(uri): uri}).items():
        for start, end in _secrets(whole):
            for secret in {whole[start:end], unquote(whole[start:end])}:
                if len(secret) >= _SHORTEST and secret not in masked:  # a word of the URI besides is in many texts
                    text = text.replace(secret, MASK)
    return _URI.sub(lambda found: shown(found[0]), text)


def _hidden() -> dict[str, str]:
    found: dict[str, str] = json.loads(os.environ.get(_VARIABLE) or "{}")
    return found


def _known() -> dict[str, str]:
    """Returns every URI with a secret that this process was given, by what is shown of it."""
    given = os.environ.get("MLFLOW_TRACKING_URI", "").strip()
    return _hidden() | ({shown(given): given} if shown(given) != given else {})

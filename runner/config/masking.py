"""Secrets of command lines and of composed configs: masked before anything is printed or written."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from omegaconf import Container, DictConfig, OmegaConf, flag_override, open_dict, read_write
from omegaconf.errors import OmegaConfBaseException

from runner.config import quoting
from runner.host import session
from runner.host.secrets import (
    MASK,
    SCHEME,
    SECRET_NAME,
    SHORTEST,
    STUDIES,
    TRACKING,
    hide,
    scrub,
    secrets_in,
    shown,
    without_known,
)

_VARIABLE_NAME = re.compile(r"\$\{oc\.env:([^},]*)")
# Keys whose value is a secret; narrower than names of parameters, because `tokens` and `tokenizer` are keys.
_SECRET_KEY = re.compile(
    r"(^|[_-])(pass(word|wd|phrase)?|pw|pwd|secret|credentials?)$|^token$"
    r"|(access|account|api|auth|bearer|hf|hub|private|secret|session)[_-]?(key|token)$",
    re.IGNORECASE,
)


def hide_arguments(arguments: Sequence[str]) -> list[str]:
    """Returns a command line with its URIs masked; `reveal` returns the originals."""
    return list(map(_hide_argument, arguments))


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
        text = without_known(text)
        for typed, shorter in replaced.items():
            text = text.replace(typed, shorter)
        return text

    overrides = config.hydra.overrides
    job = config.hydra.job
    with read_write(overrides), read_write(job):
        for node, name in ((overrides, "task"), (overrides, "hydra"), (job, "override_dirname")):
            value = OmegaConf.to_container(node, resolve=False)[name]  # type: ignore[index,call-overload]
            if isinstance(value, str):
                node[name] = masked(value)
            else:
                node[name] = list(map(masked, map(str, value)))
    # Libraries may record sys.argv.
    sys.argv[1:] = map(masked, sys.argv[1:])
    session.current().arguments = tuple(map(masked, session.current().arguments))


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
        if SCHEME.match(text):
            found |= {text[start:end] for start, end in secrets_in(text)}
        if _SECRET_KEY.search(str(key)):
            found.add(text)
        for name in _VARIABLE_NAME.findall(raw):
            if SECRET_NAME.search(name):
                found.add(os.environ.get(name, ""))
    # Longer ones first: one may be a part of another.
    longest = sorted((secret for secret in found if len(secret) >= SHORTEST), key=len, reverse=True)
    anywhere = re.compile("|".join(rf"(?<!\w){re.escape(secret)}(?!\w)" for secret in longest) or r"(?!)")
    for node, key, text in entries:
        masked = MASK
        if not _SECRET_KEY.search(str(key)):
            # A text that begins as a URI is one to its end: a password may have any character.
            masked = scrub(anywhere.sub(MASK, shown(text) if SCHEME.match(text) else text))
        if masked != text:
            with flag_override(config, ["struct", "readonly"], False):
                node[key] = masked


def _entries(node: Any) -> Iterator[tuple[Container, Any]]:
    """Yields node and key of each value below a node that is no container."""
    keys: Iterable[Any] = range(len(node))
    if isinstance(node, DictConfig):
        keys = list(node)
    for key in keys:
        child = node._get_node(key)
        is_special = child._is_none() or child._is_interpolation() or child._is_missing()
        if isinstance(child, Container) and not is_special:
            yield from _entries(child)
        else:
            yield node, key

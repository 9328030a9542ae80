"""Whether values fit the types of the schema, to the last entry of a list; OmegaConf names no place inside one."""

from __future__ import annotations

import re
import types
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any, Union, get_args, get_origin, get_type_hints

from runner.errors import ConfigError, invalid

_MISSING = "???"
_NONE = ("false", "no", "off", "none", "")  # words for null
_BOOLS = ("true", "false", "yes", "no", "on", "off", "y", "n", "1", "0")  # words that OmegaConf takes, in any case


def misfit(kind: object, value: object, key: str) -> ConfigError | None:
    """Words the first value that does not fit its type.

    Args:
      kind: a type of the schema: a dataclass, or what the annotations of one may be.
      value: plain, interpolations resolved.
      key: where it stands, as `layout.rules[0].spec`.

    Returns:
      The refusal; None where all fits. A key that a dataclass lacks is not looked at.
    """
    may_be_null = get_origin(kind) in (Union, types.UnionType)
    if may_be_null:
        if value is None:
            return None
        kind = next(one for one in get_args(kind) if one is not type(None))
    if value == _MISSING or kind is Any:
        return None
    if isinstance(kind, type) and is_dataclass(kind):
        return _misfit_below(kind, value, key, may_be_null=may_be_null)
    origin = get_origin(kind) or kind
    inner = get_args(kind)
    if not _fits(origin, value):
        return invalid(key, value, problem=f"a value of type {_name(kind)}", fix=f"set {key} to one")
    below: Iterator[ConfigError | None] = iter(())
    if isinstance(value, list):
        below = (misfit(inner[0], one, f"{key}[{place}]") for place, one in enumerate(value))
    elif isinstance(value, Mapping):
        below = (misfit(inner[1], one, f"{key}.{name}") for name, one in value.items())
    return next(filter(None, below), None)


def _misfit_below(kind: type, value: object, key: str, *, may_be_null: bool) -> ConfigError | None:
    assert is_dataclass(kind)
    names = [spec.name for spec in fields(kind)]
    if not isinstance(value, Mapping):
        given = f"{key}.{names[0]}={'...' if value is None else value}"
        fix = f"write {{{names[0]}: ...}} there" if key.endswith("]") else f"write {given}"
        if may_be_null and str(value).lower() in _NONE:
            fix = f"set {key}=null"
        return invalid(key, value, problem=f"keys under it: {', '.join(names)}", fix=fix)
    hints = get_type_hints(kind)
    found = (misfit(hints[name], value[name], f"{key}.{name}") for name in names if name in value)
    return next(filter(None, found), None)


def _fits(kind: object, value: object) -> bool:
    """Returns whether OmegaConf makes a value of this type of it."""
    if kind in (list, tuple):
        return isinstance(value, list)
    if kind is dict:
        return isinstance(value, Mapping)
    if isinstance(value, list | Mapping) or value is None:
        return False
    if kind is bool:
        return isinstance(value, bool | int) or str(value).lower() in _BOOLS
    if kind is int:
        return isinstance(value, int) or (isinstance(value, str) and _reads(int, value))
    if kind is float:
        return isinstance(value, int | float) or (isinstance(value, str) and _reads(float, value))
    return True


def _reads(kind: type[int] | type[float], text: str) -> bool:
    try:
        kind(text)
    except ValueError:
        return False
    return True


def _name(kind: object) -> str:
    text = kind.__name__ if isinstance(kind, type) and not get_args(kind) else str(kind)
    return re.sub(r"runner\.config\.\w+\.|typing\.", "", text)

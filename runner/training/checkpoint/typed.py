"""Strict reading of untrusted JSON: every value has the expected type, or an error names its place."""

from __future__ import annotations

import math
from collections.abc import Iterable
from contextlib import suppress
from typing import Any


class MisfitError(ValueError):
    """A value of a wrong type."""


def whole(value: object, where: str) -> int:
    """Returns an integer of at least 0. `true` is rejected, although Python counts it as an integer."""
    if type(value) is not int or value < 0:
        raise MisfitError(f"{where} must be an integer of at least 0")
    return value


def number(value: object, where: str, *, finite: bool = False) -> float:
    """Returns a number.

    Args:
      value: parsed JSON.
      where: its place, in words.
      finite: reject NaN and infinities.
    """
    if type(value) in (int, float):
        # JSON has integers that no float can represent.
        with suppress(OverflowError):
            converted = float(value)  # type: ignore[arg-type]
            if math.isfinite(converted) or not finite:
                return converted
    raise MisfitError(f"{where} must be a {'finite ' if finite else ''}number")


def text(value: object, where: str) -> str:
    """Returns a string that can be shown in one line."""
    if not isinstance(value, str) or not value.isprintable():
        raise MisfitError(f"{where} must be a printable string")
    return value


def flag(value: object, where: str) -> bool:
    """Returns true or false."""
    if not isinstance(value, bool):
        raise MisfitError(f"{where} must be true or false")
    return value


def items(value: object, where: str) -> list[Any]:
    """Returns a list."""
    if not isinstance(value, list):
        raise MisfitError(f"{where} must be a list")
    return value


def mapping(value: object, where: str, required: Iterable[str] = (), *, exactly: bool = False) -> dict[str, Any]:
    """Returns a mapping.

    Args:
      value: parsed JSON.
      where: its place, in words.
      required: keys that it must have.
      exactly: reject other keys.
    """
    if not isinstance(value, dict):
        raise MisfitError(f"{where} must be a mapping")
    known = set(required)
    missing = sorted(known - set(value))
    if missing:
        raise MisfitError(f"{where} lacks {missing[0]}")
    if exactly and set(value) != known:
        raise MisfitError(f"{where} has other keys than {', '.join(sorted(known))}")
    return value

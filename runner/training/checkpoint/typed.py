"""Strict reading of untrusted JSON: every value has the expected type, or an error names its place.

`runner.config.build` decides which values are integers, numbers, strings and booleans, for configs and for these.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from runner.config.build import exactly

T = TypeVar("T")


class MisfitError(ValueError):
    """A value of a wrong type."""


def whole(value: object, where: str) -> int:
    """Returns an integer of at least 0."""
    return _read(int, value, where, "an integer of at least 0", lambda integer: integer >= 0)


def number(value: object, where: str, *, finite: bool = False) -> float:
    """Returns a number.

    Args:
      value: parsed JSON.
      where: its place, in words.
      finite: reject NaN and infinities.
    """
    if finite:
        return _read(float, value, where, "a finite number", math.isfinite)
    return _read(float, value, where, "a number")


def text(value: object, where: str) -> str:
    """Returns a string that can be shown in one line."""
    return _read(str, value, where, "a printable string", str.isprintable)


def flag(value: object, where: str) -> bool:
    """Returns true or false."""
    return _read(bool, value, where, "true or false")


def _read(kind: type[T], value: object, where: str, expected: str, is_valid: Callable[[T], bool] | None = None) -> T:
    try:
        typed = exactly(kind, value)
    # JSON's integers have no limit: one past the largest float is an OverflowError.
    except (ValueError, OverflowError):
        raise MisfitError(f"{where} must be {expected}") from None
    if is_valid is not None and not is_valid(typed):
        raise MisfitError(f"{where} must be {expected}")
    return typed


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
    # Sorted, so that one file always gives the same message.
    missing = sorted(known - set(value))
    if missing:
        raise MisfitError(f"{where} lacks {missing[0]}")
    if exactly and set(value) != known:
        raise MisfitError(f"{where} has other keys than {', '.join(sorted(known))}")
    return value

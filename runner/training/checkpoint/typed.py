"""Values out of a JSON file that anyone may have written: of the type that they must have, or refused by name."""

from __future__ import annotations

import math
from collections.abc import Iterable
from contextlib import suppress
from typing import Any


class MisfitError(ValueError):
    """A value that is not what its place wants."""


def whole(value: object, where: str) -> int:
    """Returns a whole number from 0 on; `true` is none."""
    if type(value) is not int or value < 0:
        raise MisfitError(f"{where} must be a whole number from 0 on")
    return value


def number(value: object, where: str, *, finite: bool = False) -> float:
    """Returns a number.

    Args:
      value: as it was read.
      where: its place, in words.
      finite: whether NaN and the infinities are refused.
    """
    if type(value) in (int, float):
        with suppress(OverflowError):  # a whole number that no float can hold
            converted = float(value)  # type: ignore[arg-type]
            if math.isfinite(converted) or not finite:
                return converted
    raise MisfitError(f"{where} must be a {'finite ' if finite else ''}number")


def text(value: object, where: str) -> str:
    """Returns words that can be shown in a line."""
    if not isinstance(value, str) or not value.isprintable():
        raise MisfitError(f"{where} must be printable text")
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


def mapping(value: object, where: str, wanted: Iterable[str] = (), *, exactly: bool = False) -> dict[str, Any]:
    """Returns a mapping.

    Args:
      value: as it was read.
      where: its place, in words.
      wanted: keys that it must have.
      exactly: whether it may have no other.
    """
    if not isinstance(value, dict):
        raise MisfitError(f"{where} must be a mapping")
    wanted = set(wanted)
    if missing := sorted(wanted - set(value)):
        raise MisfitError(f"{where} lacks {missing[0]}")
    if exactly and set(value) != wanted:
        raise MisfitError(f"{where} has keys besides {', '.join(sorted(wanted))}")
    return value

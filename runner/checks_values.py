"""Checks of single values, for `runner.checks` and its parts."""

from __future__ import annotations

import math
from collections.abc import Sequence

from runner.errors import did_you_mean, refuse


def one_of(key: str, value: str, allowed: Sequence[str]) -> None:
    """Raises ConfigError for a word that is none of the allowed ones."""
    if value not in allowed:
        raise refuse(key, value, allowed=f"one of {', '.join(allowed)}", mend=did_you_mean(value, list(allowed)))


def positive(key: str, value: int) -> None:
    """Raises ConfigError for a number below 1."""
    if value < 1:
        raise refuse(key, value, allowed="a whole number of at least 1", mend=f"set {key}=1 or more")


def within(key: str, value: float | None, low: float, high: float, *, open_low: bool = False) -> None:
    """Raises ConfigError for a number that is not finite, below `low` (or equal to it), or not below `high`."""
    if value is None:
        return
    good = (low < value if open_low else low <= value) and value < high
    if not math.isfinite(value) or not good:
        span = f"{'above' if open_low else 'at least'} {low:g}" + ("" if math.isinf(high) else f" and below {high:g}")
        raise refuse(key, value, allowed=f"a number {span}", mend=f"choose {key} in that range")

"""Durations such as `30m`, as keys of the config have them."""

from __future__ import annotations

_UNIT_S = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}


def seconds_of(duration: str) -> float:
    """Returns the seconds of a valid duration; see `runner.config.fields.duration_problem`.

    Example:
      >>> seconds_of("1.5h")
      5400.0
    """
    return float(duration[:-1]) * _UNIT_S[duration[-1]]

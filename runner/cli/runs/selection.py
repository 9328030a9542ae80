"""Selection of recorded runs by name, age, count and status."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from runner.errors import invalid

_STATUSES = ("FINISHED", "FAILED", "KILLED", "RUNNING", "UNFINISHED")
_SECONDS = {"m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}


@dataclass(frozen=True)
class Selection:
    """The filters of a command line; a run must match all of them.

    Attributes:
      runs: ids, starts of ids, names or `latest`; none: all.
      older: seconds since the run ended, at least; None: any.
      keep: the newest so many runs with checkpoints do not match; None: all match.
      statuses: of the run; none: any.
    """

    runs: tuple[str, ...] = ()
    older: float | None = None
    keep: int | None = None
    statuses: tuple[str, ...] = ()


def age(key: str, text: str) -> float:
    """Returns an age in seconds.

    >>> age("older", "2d"), age("older", "1.5h")
    (172800.0, 5400.0)

    Raises:
      ConfigError: it is not an age.
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([mhdw])", text.strip())
    if match is None:
        raise invalid(key, text, problem="must be a number followed by m, h, d or w", fix=f"set {key}=30d")
    return float(match[1]) * _SECONDS[match[2]]


def age_words(seconds: float) -> str:
    """Returns an age as a cell shows it.

    >>> age_words(30), age_words(7200), age_words(3 * 86400)
    ('0 m', '2 h', '3 d')
    """
    unit = "m"
    # From two units on, so that the rounded number is off by less than a half.
    for larger_unit in ("h", "d"):
        if seconds >= 2 * _SECONDS[larger_unit]:
            unit = larger_unit
    return f"{int(max(seconds, 0) // _SECONDS[unit])} {unit}"


def statuses(texts: Sequence[str]) -> tuple[str, ...]:
    """Returns MLflow's statuses from texts such as `failed,killed`.

    Raises:
      ConfigError: there is no such status.
    """
    names = [name.strip().upper() for name in ",".join(texts).split(",") if name.strip()]
    for name in names:
        if name not in _STATUSES:
            known = ", ".join(_STATUSES).lower()
            raise invalid("status", name.lower(), problem=f"must be one of {known}", fix="set status=failed,killed")
    return tuple(names)

"""Which runs are meant: by name, age, count and status."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from runner.errors import invalid

STATUSES = ("FINISHED", "FAILED", "KILLED", "RUNNING", "UNFINISHED", "DELETED")
_UNITS = {"m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}
_AGE = re.compile(r"(\d+(?:\.\d+)?)([mhdw])")


@dataclass(frozen=True)
class Choice:
    """What a command line says of the runs that it means; a run must meet all of it.

    Attributes:
      runs: ids, beginnings of ids, names or `latest`; none: all.
      older: seconds since the run ended, at least; null: any.
      keep: the newest so many runs with checkpoints are not meant; null: all are.
      statuses: of the run; none: any.
    """

    runs: tuple[str, ...] = ()
    older: float | None = None
    keep: int | None = None
    statuses: tuple[str, ...] = ()

    @property
    def is_open(self) -> bool:
        """Whether nothing says which runs are meant."""
        return not self.runs and self.older is None and self.keep is None and not self.statuses


def age(key: str, text: str) -> float:
    """Returns an age in seconds.

    >>> age("older", "2d"), age("older", "1.5h")
    (172800.0, 5400.0)

    Raises:
      ConfigError: it is none.
    """
    match = _AGE.fullmatch(text.strip())
    if match is None:
        raise invalid(key, text, problem="a number with m, h, d or w behind it", fix=f"set {key}=30d")
    return float(match[1]) * _UNITS[match[2]]


def age_words(seconds: float) -> str:
    """Returns an age as a cell shows it.

    >>> age_words(30), age_words(7200), age_words(3 * 86400)
    ('0 m', '2 h', '3 d')
    """
    unit = "d" if seconds >= 2 * 86400 else "h" if seconds >= 2 * 3600 else "m"
    return f"{int(max(seconds, 0) // _UNITS[unit])} {unit}"


def statuses(words: Sequence[str]) -> tuple[str, ...]:
    """Returns statuses as MLflow words them, of texts like `failed,killed`.

    Raises:
      ConfigError: there is no such status.
    """
    found = tuple(word.strip().upper() for text in words for word in text.split(",") if word.strip())
    for word in found:
        if word not in STATUSES:
            known = ", ".join(STATUSES).lower()
            raise invalid("status", word.lower(), problem=f"any of {known}", fix="set status=failed,killed")
    return found

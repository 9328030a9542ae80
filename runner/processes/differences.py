"""The first setting in which two processes differ."""

from __future__ import annotations

import json
from collections.abc import Mapping


def difference(first: Mapping[str, object], other: Mapping[str, object]) -> str:
    """Returns the first key whose values differ, with the other process's value first; empty if none does.

    Args:
      first: settings of process 0.
      other: settings of the other process.

    >>> difference({"keras": "3.15.1", "jax": "0.10"}, {"keras": "3.15.0", "jax": "0.10"})
    'keras: 3.15.0 and 3.15.1'
    """
    for key in sorted({*first, *other}):
        value_of_first = first.get(key, "nothing")
        value_of_other = other.get(key, "nothing")
        if value_of_first != value_of_other:
            return f"{key}: {shown(value_of_other)} and {shown(value_of_first)}"
    return ""


def shown(value: object) -> str:
    """Returns a value as a user types it."""
    if isinstance(value, str):
        return value
    return json.dumps(value, default=str)

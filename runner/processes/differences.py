"""What two processes don't agree in."""

from __future__ import annotations

import json
from collections.abc import Mapping


def difference(first: Mapping[str, object], other: Mapping[str, object]) -> str:
    """Returns in words the first key whose values differ; empty where none does.

    >>> difference({"keras": "3.15.1", "jax": "0.10"}, {"keras": "3.15.0", "jax": "0.10"})
    'keras is 3.15.0 there and 3.15.1 on process 0'
    """
    for key in sorted({*first, *other}):
        here = first.get(key, "nothing")
        there = other.get(key, "nothing")
        if here != there:
            return f"{key} is {shown(there)} there and {shown(here)} on process 0"
    return ""


def shown(value: object) -> str:
    """Returns a value as a person types it."""
    return value if isinstance(value, str) else json.dumps(value, default=str)

"""Short names of dotted keys and values, for tables and names of runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

# Characters that a number may have in a name; longer ones are rounded to four digits.
_LONGEST_NUMBER = 8


def varied_name(varied: Mapping[str, str]) -> str:
    """Returns the short name of varied keys and their values.

    A key is named by its last part, or by more of it if two are alike.

    >>> varied_name({"dataset.batch_size": "64", "mesh": "batch8"})
    'batch_size=64,mesh=batch8'
    >>> varied_name({"+mesh.axes.batch": "2", "layout.batch": "x"})
    'axes.batch=2,layout.batch=x'
    """
    parts = [f"{short}={short_value(varied[key])}" for key, short in short_keys(list(varied)).items()]
    return ",".join(parts)


def short_value(value: str) -> str:
    """Returns a long number rounded to four digits, other values unchanged."""
    if len(value) <= _LONGEST_NUMBER:
        return value
    try:
        return f"{float(value):.4g}"
    except ValueError:
        return value


def short_keys(keys: Sequence[str]) -> dict[str, str]:
    """Returns the shortest suffix of each dotted key that is its own."""
    parts_of = {key: key.lstrip("+").split(".") for key in keys}
    short: dict[str, str] = {}
    for key, parts in parts_of.items():
        others = [other for other in keys if other != key]
        for count in range(1, len(parts) + 1):
            suffix = parts[-count:]
            short[key] = ".".join(suffix)
            # At the latest, the whole key differs from all others.
            if all(parts_of[other][-count:] != suffix for other in others):
                break
    return short

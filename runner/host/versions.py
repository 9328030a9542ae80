"""Versions of what is installed."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version

# Packages whose distribution has another name.
_DISTRIBUTIONS = {"runner": "mesh-runner"}


def installed(names: Iterable[str]) -> dict[str, str]:
    """Returns the versions of those of some distributions that are installed, by name.

    This package is asked for as `runner`, the name in every record, and installed as `mesh-runner`.
    """
    found = {}
    for name in names:
        with suppress(PackageNotFoundError):
            found[name] = version(_DISTRIBUTIONS.get(name, name))
    return found

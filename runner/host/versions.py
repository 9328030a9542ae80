"""Versions of what is installed."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version


def installed(names: Iterable[str]) -> dict[str, str]:
    """Returns the versions of those of some distributions that are installed, by name."""
    found = {}
    for name in names:
        with suppress(PackageNotFoundError):
            found[name] = version(name)
    return found

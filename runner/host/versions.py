"""Versions of installed distributions."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version

# Packages whose distribution has another name.
_DISTRIBUTIONS = {"runner": "mesh-runner"}


def installed(names: Iterable[str]) -> dict[str, str]:
    """Returns the version of each distribution that is installed, by name.

    This package is `runner` here, its name in every record; its distribution is `mesh-runner`.
    """
    versions = {}
    for name in names:
        with suppress(PackageNotFoundError):
            versions[name] = version(_DISTRIBUTIONS.get(name, name))
    return versions

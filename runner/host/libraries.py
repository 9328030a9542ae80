"""Versions of installed libraries."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version


def installed(names: Iterable[str]) -> dict[str, str]:
    """Returns the version of each distribution that is installed, by name; `runner` is this package's in records."""
    versions = {}
    for name in names:
        with suppress(PackageNotFoundError):
            versions[name] = version("mesh-runner" if name == "runner" else name)
    return versions

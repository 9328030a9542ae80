"""Versions of installed distributions. Imports nothing that takes time."""

from __future__ import annotations

import platform
from collections.abc import Iterable
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version

# Distributions whose versions a bug report needs.
_REPORTED = (
    "tensorflow",
    "tf-keras",
    "keras",
    "jax",
    "jaxlib",
    "tensorflow-datasets",
    "numpy",
    "hydra-core",
    "omegaconf",
    "mlflow",
    "optuna",
    "safetensors",
)


def installed(names: Iterable[str]) -> dict[str, str]:
    """Returns the version of each distribution that is installed, by name; `runner` is this package's in records."""
    versions = {}
    for name in names:
        with suppress(PackageNotFoundError):
            versions[name] = version("mesh-runner" if name == "runner" else name)
    return versions


def print_versions() -> int:
    """Prints the versions of this package, of Python and of the libraries; returns the process's exit code."""
    versions = installed(["runner"]) | {"python": platform.python_version()}
    versions |= dict.fromkeys(_REPORTED, "not installed") | installed(_REPORTED)
    width = max(map(len, versions))
    for name, number in versions.items():
        print(f"{name:{width}}  {number}")
    return 0

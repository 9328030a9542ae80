"""The versions that `--version` prints. Imports nothing that takes time."""

from __future__ import annotations

import platform
from importlib.metadata import PackageNotFoundError, version

import runner

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


def print_versions() -> int:
    """Prints the versions of this package, of Python and of the libraries; returns the process's exit code."""
    versions = {"runner": runner.__version__, "python": platform.python_version()}
    for name in _REPORTED:
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            versions[name] = "not installed"
    for name, number in versions.items():
        print(f"{name:{max(map(len, versions))}}  {number}")
    return 0

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
_MISSING = "not installed"


def print_versions() -> int:
    """Prints the versions of this package, of Python and of the libraries.

    Returns:
      The process's exit code.
    """
    versions = {"runner": runner.__version__, "python": platform.python_version()}
    for name in _REPORTED:
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            versions[name] = _MISSING
    width = max(map(len, versions))
    for name, number in versions.items():
        print(f"{name:{width}}  {number}")
    return 0

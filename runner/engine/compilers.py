"""Compilers of accelerators that need not be here: which are installed, and what installs them.

Imports neither JAX nor the compilers.
"""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass


@dataclass(frozen=True)
class Compiler:
    """A compiler.

    Attributes:
      module: Python module that it is installed as.
      extra: of this package, which installs it.
    """

    module: str
    extra: str


COMPILERS = {
    "gpu": Compiler("jax_plugins.xla_cuda12", "cuda"),
    "tpu": Compiler("libtpu", "tpu"),
}


def is_installed(kind: str) -> bool:
    """Returns whether the compiler of a kind of device is installed."""
    if kind not in COMPILERS:
        return False
    try:
        return importlib.util.find_spec(COMPILERS[kind].module) is not None
    except ModuleNotFoundError:
        return False

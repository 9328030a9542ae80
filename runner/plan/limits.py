"""The memory of a device that a program can use. JAX reserves a share of a GPU's memory when it starts."""

from __future__ import annotations

import os

from runner.errors import invalid

VARIABLE = "XLA_PYTHON_CLIENT_MEM_FRACTION"
# What JAX reserves of a GPU's memory unless `VARIABLE` says otherwise, and what it can be told to reserve: the rest is
# for CUDA's context, cuDNN and NCCL.
DEFAULT = 0.75
LARGEST = 0.95
_GPU = "gpu"


def share(kind: str | None, needed_bytes: int, memory_bytes: int) -> float:
    """Returns the share of a device's memory that a program can use; 0: JAX reserves none of it.

    It is the one that `XLA_PYTHON_CLIENT_MEM_FRACTION` sets. If it is not set: JAX's default, or the largest share if
    the program needs more than the default. Devices that are no GPUs have the memory that their compilers leave to
    programs.

    Raises:
      ConfigError: the variable is no share.
    """
    if kind != _GPU:
        return 0.0
    stated = os.environ.get(VARIABLE)
    if stated:
        return _parsed(stated)
    return DEFAULT if needed_bytes <= DEFAULT * memory_bytes else LARGEST


def _parsed(stated: str) -> float:
    try:
        value = float(stated)
    except ValueError:
        value = 0.0
    if not 0 < value <= 1:
        raise invalid(VARIABLE, stated, problem="must be above 0 and at most 1", fix=f"set {VARIABLE}={LARGEST}")
    return value


def setting(share: float) -> str:
    """Returns what a command has to set so that JAX reserves a share; empty: JAX does so by itself."""
    return f"{VARIABLE}={share:g}" if share > DEFAULT else ""

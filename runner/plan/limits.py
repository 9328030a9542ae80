"""The memory that a program can use: of an accelerator, of this machine, and the error when there is no more."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager

import psutil

from runner.config.schema import MeshConfig
from runner.errors import EngineError, invalid
from runner.layout import mesh

logger = logging.getLogger(__name__)

VARIABLE = "XLA_PYTHON_CLIENT_MEM_FRACTION"
# What JAX reserves of a GPU's memory unless `VARIABLE` says otherwise, and what it can be told to reserve: the rest is
# for CUDA's context, cuDNN and NCCL.
DEFAULT = 0.75
LARGEST = 0.95
_GPU = "gpu"
# Types of errors of libraries, and what their messages contain. XLA's status is RESOURCE_EXHAUSTED; TensorFlow raises
# a type of its own, whose message a distributed call may wrap in another error.
_TYPES = ("ResourceExhaustedError", "MemoryError")
_MESSAGES = ("RESOURCE_EXHAUSTED", "OOM when allocating", "Out of memory allocating", "std::bad_alloc")
_AMOUNT = re.compile(r"allocat\w*(?: of)?(?: tensor of)? ([\d.]+ ?(?:bytes|[KMGT]i?B))", re.IGNORECASE)


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
    if not stated:
        if needed_bytes <= DEFAULT * memory_bytes:
            return DEFAULT
        return LARGEST
    try:
        value = float(stated)
    except ValueError:
        value = 0.0
    if not 0 < value <= 1:
        raise invalid(VARIABLE, stated, problem="must be above 0 and at most 1", fix=f"set {VARIABLE}={LARGEST}")
    return value


def host_bytes() -> int:
    """Returns the memory of this machine, which its virtual CPU devices share."""
    return int(psutil.virtual_memory().total)


@contextmanager
def explained(config: MeshConfig) -> Iterator[None]:
    """Turns an out-of-memory error of the body into an `EngineError` of one line."""
    try:
        yield
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        logger.exception("the run is out of memory")
        kind = mesh.device_kind(config)
        where = f"a {kind.upper()} device of the mesh"
        # Python's own error is of the host's memory, whatever the mesh has.
        if kind == "cpu" or isinstance(error, MemoryError):
            where = "this machine"
        line = f"out of memory (OOM) on {where}"
        amount = _AMOUNT.search(str(error))
        if amount is not None:
            line += f": could not allocate {amount[1]}"
        fix = 'lower dataset.batch_size, or see python -m runner.plan, and "Out of memory" in the docs'
        raise EngineError(f"{line}; {fix}") from error


def is_out_of_memory(error: BaseException) -> bool:
    """Returns whether an error, or one of its causes, says that memory is exhausted."""
    seen = []
    current: BaseException | None = error
    while current is not None and current not in seen:
        seen.append(current)
        text = str(current)
        if type(current).__name__ in _TYPES or any(message in text for message in _MESSAGES):
            return True
        current = current.__cause__ or current.__context__
    return False

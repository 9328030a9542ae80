"""The C library's heap, and Python's collection of reference cycles."""

from __future__ import annotations

import ctypes
import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache


@cache
def _trim() -> object:
    """Returns glibc's `malloc_trim`; None with another C library."""
    return getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None


def give_back() -> None:
    """Gives memory that was freed back to the system.

    After a few large blocks were freed, glibc takes blocks of up to 32 MiB from its heap and keeps what is freed there
    (mallopt(3), M_MMAP_THRESHOLD): arrays that take the place of others, of other sizes, then add to them.
    """
    if callable(trim := _trim()):
        trim(0)


@contextmanager
def without_collection() -> Iterator[None]:
    """Pauses the search for reference cycles, for a block that makes many objects and keeps them.

    Each such object counts towards the next search, and each search looks at all objects that are there. In MLflow's
    database store, that is two thirds of the CPU time of reading a page of runs.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()

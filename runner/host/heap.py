"""Memory of the C library's heap, and Python's garbage collector."""

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
    # `CDLL(None)` is this process, which has the C library loaded.
    return getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None


def give_back() -> None:
    """Returns freed memory to the system.

    After a few large blocks were freed, glibc allocates blocks of up to 32 MiB on its heap and keeps freed ones there
    (mallopt(3), M_MMAP_THRESHOLD): new arrays of other sizes then add to the freed ones.
    """
    trim = _trim()
    if callable(trim):
        trim(0)


@contextmanager
def without_collection() -> Iterator[None]:
    """Pauses garbage collection, for a block that makes many objects and keeps them.

    Each such object counts towards the next collection, and each collection looks at all existing objects. In MLflow's
    database store, that is two thirds of the CPU time of reading a page of runs.
    """
    # Blocks may be nested, and a user's own code may have paused the collection.
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()

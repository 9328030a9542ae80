"""Memory of the C library's heap."""

from __future__ import annotations

import ctypes
import sys
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

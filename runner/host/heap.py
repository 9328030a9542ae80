"""The C library's heap."""

from __future__ import annotations

import ctypes
import sys
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

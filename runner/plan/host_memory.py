"""Memory of this machine, which the virtual CPU devices of its processes share."""

from __future__ import annotations

import os

import psutil


def total() -> int:
    """Returns the bytes of this machine's memory, or as many as this process may take."""
    available: int = psutil.virtual_memory().total
    if os.name == "posix":
        import resource  # Windows has no such module

        for limit in (resource.RLIMIT_AS, resource.RLIMIT_DATA):
            soft, _ = resource.getrlimit(limit)
            if soft != resource.RLIM_INFINITY:
                available = min(available, soft)
    return available


def of_virtual_device(devices: int, machines: int) -> int:
    """Returns the bytes of this machine's memory for one virtual device, of `devices` on a number of equal
    `machines`.
    """
    return total() * machines // devices

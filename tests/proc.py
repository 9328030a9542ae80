"""Processes that tests look at."""

import os
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

# In a process namespace that has no /proc of its own, the runner takes no process that it can't see for ended.
_HAS_OWN_PROC = str(Path("/proc/self").readlink()) == str(os.getpid())
needs_own_proc = pytest.mark.skipif(not _HAS_OWN_PROC, reason="/proc shows another process namespace")


def until(holds: Callable[[], object], within: float = 300.0) -> None:
    """Waits until something holds."""
    deadline = time.monotonic() + within
    while not holds():
        assert time.monotonic() < deadline, "it did not come to hold in time"
        time.sleep(0.02)


def is_there(pid: int) -> bool:
    """Returns whether a process lives; one that only waits to be asked how it ended does not."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def children_of(pid: int) -> list[int]:
    """Returns the processes that a process has started."""
    return sorted(child.pid for child in psutil.Process(pid).children())

"""What `/proc` shows of processes: those of an outer namespace, if `unshare --pid` mounted no new one."""

from __future__ import annotations

import os
from pathlib import Path


def own_pid() -> int:
    """Returns the number by which `/proc` lists this process; that of the process where there is no `/proc`."""
    try:
        return int(Path("/proc/self").readlink().name)
    except (OSError, ValueError):
        return os.getpid()


def is_of_own_namespace() -> bool:
    """Returns whether `/proc` lists processes by the numbers that this process knows them by."""
    return own_pid() == os.getpid()

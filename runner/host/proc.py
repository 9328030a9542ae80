"""Process ids in `/proc`, which are those of an outer namespace if `unshare --pid` mounted no new `/proc`."""

from __future__ import annotations

import os
from pathlib import Path


def own_pid() -> int:
    """Returns the id by which `/proc` lists this process; `os.getpid()` on systems without `/proc`."""
    try:
        return int(Path("/proc/self").readlink().name)
    except (OSError, ValueError):
        return os.getpid()


def is_of_own_namespace() -> bool:
    """Returns whether `/proc` lists processes by the ids that they have for this process."""
    return own_pid() == os.getpid()

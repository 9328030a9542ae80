"""A lock between processes, held while a store is made or a file of unsent records is stored."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

if sys.platform == "win32":
    import msvcrt
else:
    import fcntl


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Holds the lock of a file; other processes wait for it. The system frees it when the holder dies.

    Args:
      path: the lock's file, made where it is not there and never removed.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        _acquire(handle)
        yield
    finally:
        os.close(handle)


if sys.platform == "win32":

    def _acquire(handle: int) -> None:
        while True:
            with contextlib.suppress(OSError):  # msvcrt gives up after ten seconds
                msvcrt.locking(handle, msvcrt.LK_LOCK, 1)
                return
            time.sleep(0.1)

else:

    def _acquire(handle: int) -> None:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
        except OSError:  # a file system without flock
            fcntl.lockf(handle, fcntl.LOCK_EX)

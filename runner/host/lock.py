"""Locks between processes, which the kernel frees when the holder ends, however that happens."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat
import time
from collections.abc import Callable, Iterator
from pathlib import Path

# A person notices no wait this short, and a network file system is not asked often.
_POLL_S = 0.2
# Errors of a lock that another process holds; which one depends on the system. Others mean that there are no locks.
_BUSY = {errno.EACCES, errno.EAGAIN, errno.EDEADLK}


class HeldError(RuntimeError):
    """A lock that another process holds."""

    def __init__(self) -> None:
        super().__init__("another process holds the lock")


@contextlib.contextmanager
def locked(path: Path, say: Callable[[str], object] = str, what: str = "", *, wait: bool = True) -> Iterator[None]:
    """Locks the file `path` for the block; on a file system without locks, the block runs without one.

    The file is not removed afterwards: then two processes could lock two files of the same name.

    Without `wait`, a lock that another process holds is a HeldError. With it, `say` is called once with a message that
    has the lock's purpose, `what`. An OSError says that the file can't be created, or is not a regular one.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    handle = _open(path)
    has_waited = False
    try:
        while not _acquire(handle):
            if not wait:
                raise HeldError
            if not has_waited:
                say(f"{what}: waiting for another process, which holds the lock")
                has_waited = True
            time.sleep(_POLL_S)
        yield
    finally:
        # Closing alone would not free it while a forked child has the file open too.
        with contextlib.suppress(OSError):
            fcntl.flock(handle, fcntl.LOCK_UN)
        os.close(handle)


def lock_until_exit(path: Path) -> int:
    """Locks a file for as long as this process lives, and returns the open file; closing it frees the lock.

    The lock is the kernel's (on NFS the server's): process ids, which repeat in containers, play no part. It raises as
    `locked` does without waiting.
    """
    handle = _open(path)
    if not _acquire(handle):
        os.close(handle)
        raise HeldError
    return handle


def _open(path: Path) -> int:
    # The file is not always ours: a link may lead elsewhere, and opening a FIFO may wait.
    safely = os.O_NOFOLLOW | os.O_NONBLOCK
    try:
        handle = os.open(path, os.O_RDWR | os.O_CREAT | safely, 0o666)
    except PermissionError:
        # Another user made the file: who may read it can lock it.
        handle = os.open(path, os.O_RDONLY | safely)
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    return handle


def _acquire(handle: int) -> bool:
    """Takes the lock, and returns False if another process has it."""
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        return error.errno not in _BUSY
    return True

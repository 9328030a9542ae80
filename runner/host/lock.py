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
_DIGITS = b"0123456789"
# More than any process id has digits: a file with other content is a user's, and is not written into.
_PID_BYTES = 32
# Errors of a lock that another process holds; which one depends on the system. Others mean that there are no locks.
_BUSY = {errno.EACCES, errno.EAGAIN, errno.EDEADLK}


class HeldError(RuntimeError):
    """A lock that another process holds; `holder` is its id, or `(unknown)`."""

    def __init__(self, holder: str) -> None:
        super().__init__(f"process {holder} holds the lock")
        self.holder = holder


@contextlib.contextmanager
def locked(path: Path, say: Callable[[str], object] = str, what: str = "", *, wait: bool = True) -> Iterator[None]:
    """Locks the file `path` for the block.

    The file, and its folder, are created if they do not exist. The file is not removed afterwards: then two processes
    could lock two files of the same name. If the file system has no locks, the block runs without one.

    Args:
      path: the lock file.
      say: called with one message if this process waits, or if there are no locks; by default it does nothing.
      what: purpose of the lock, in words, for the message.
      wait: as long as another process has it locked.

    Raises:
      HeldError: another process holds it, and `wait` is False.
      OSError: the file can't be created, or is not a regular file.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    handle = _open(path)
    try:
        if _acquire(handle, path, say, what, wait=wait):
            _note_pid(handle)
        yield
    finally:
        # Which frees the lock, unless a forked child has the file open too.
        with contextlib.suppress(OSError):
            fcntl.flock(handle, fcntl.LOCK_UN)
        os.close(handle)


def lock_until_exit(path: Path) -> int | None:
    """Locks a file for as long as this process lives; the kernel frees it however the process ends.

    The lock is the kernel's (on NFS the server's): process ids, which repeat in containers, play no part.

    Returns:
      The open file; closing it frees the lock. None if the file system has no locks.

    Raises:
      HeldError: another process has locked it.
      OSError: the file can't be created, or is not a regular file.
    """
    while True:
        handle = _open(path)
        try:
            has_locks = _acquire(handle, path, str, "", wait=False)
            # The last holder may have removed the file after it was opened here: a lock on it would exclude nobody.
            with contextlib.suppress(FileNotFoundError):
                if has_locks and os.path.samestat(os.fstat(handle), path.lstat()):
                    return handle
        except BaseException:
            os.close(handle)
            raise
        os.close(handle)
        if not has_locks:
            return None


def _open(path: Path) -> int:
    # The file is not always ours: through a link another file would be truncated, and opening a FIFO may wait.
    safely = os.O_NOFOLLOW | os.O_NONBLOCK
    try:
        handle = os.open(path, os.O_RDWR | os.O_CREAT | safely, 0o666)
    except PermissionError:
        # Another user made the file: who may read it can lock it, and the process id in it is for people only.
        handle = os.open(path, os.O_RDONLY | safely)
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    return handle


def _note_pid(handle: int) -> None:
    """Writes this process's id into a lock file that is empty or has one: it may be a file of the user's."""
    if not os.read(handle, _PID_BYTES).strip(_DIGITS):
        # On a full disk, or in another user's file, the id can't be written. The lock itself needs neither.
        with contextlib.suppress(OSError):
            os.ftruncate(handle, 0)
            os.pwrite(handle, str(os.getpid()).encode(), 0)


def _acquire(handle: int, path: Path, say: Callable[[str], object], what: str, *, wait: bool) -> bool:
    """Takes the lock; returns False if the file system has no locks."""
    has_waited = False
    while True:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except OSError as error:
            if error.errno not in _BUSY:
                say(f"{what}: this file system has no locks ({error.strerror}); start one run at a time")
                return False
        if not wait:
            raise HeldError(_holder(path))
        if not has_waited:
            say(f"{what}: waiting for process {_holder(path)}, which holds the lock")
            has_waited = True
        time.sleep(_POLL_S)


def _holder(path: Path) -> str:
    """Returns the process id in a lock file, or `(unknown)`."""
    with contextlib.suppress(OSError, ValueError):
        pid = path.read_text()
        if pid.isdigit():
            return pid
    return "(unknown)"

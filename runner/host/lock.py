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


def _try_lock(handle: int) -> None:
    fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)


def _unlock(handle: int) -> None:
    fcntl.flock(handle, fcntl.LOCK_UN)


@contextlib.contextmanager
def locked(path: Path, say: Callable[[str], object] = str, what: str = "") -> Iterator[None]:
    """Locks the file `path` for the block, and waits as long as another process has it locked.

    The file is not removed afterwards: then two processes could lock two files of the same name. If the file system
    has no locks, `say` gets one message, and the block runs without a lock.

    Args:
      path: the lock file; its folder is created if it does not exist.
      say: called with a message, once, if this process waits; by default it does nothing.
      what: purpose of the lock, in words, for the message.

    Yields:
      Nothing; the lock is held inside the block.

    Raises:
      OSError: the file can't be created.
    """
    with _opened(path) as handle:
        is_locked = _acquire(handle, path, say, what, wait=True)
        with _noted(handle) if is_locked else contextlib.nullcontext():
            yield


class HeldError(RuntimeError):
    """A lock that another process holds.

    Attributes:
      holder: the id of that process, or `(unknown)`.
    """

    def __init__(self, holder: str) -> None:
        super().__init__(f"process {holder} holds the lock")
        self.holder = holder


@contextlib.contextmanager
def locked_at_once(path: Path, say: Callable[[str], object] = str, what: str = "") -> Iterator[None]:
    """Locks the file `path` for the block without waiting; the rest is as in `locked`.

    Args:
      path: the lock file; its folder is created if it does not exist.
      say: called with a message if the file system has no locks.
      what: purpose of the lock, in words, for the message.

    Yields:
      Nothing; the lock is held inside the block.

    Raises:
      HeldError: another process holds it.
      OSError: the file can't be created, or is not a regular file.
    """
    with _opened(path) as handle:
        is_locked = _acquire(handle, path, say, what, wait=False)
        with _noted(handle) if is_locked else contextlib.nullcontext():
            yield


def lock_until_exit(path: Path) -> int | None:
    """Locks a file for as long as this process lives; the kernel frees it however the process ends.

    The lock is the kernel's (on NFS the server's): process ids, which repeat in containers, play no part.

    Args:
      path: the lock file; created if it does not exist, in a folder that does.

    Returns:
      The open file; closing it frees the lock. None if the file system has no locks.

    Raises:
      HeldError: another process has locked it.
      OSError: the file can't be created, or is not a regular file.
    """
    while True:
        handle = _open(path)
        try:
            if not _acquire(handle, path, str, "", wait=False):
                os.close(handle)
                return None
            # The last holder may have removed the file after it was opened here: a lock on it would exclude nobody.
            if _is_at(handle, path):
                return handle
        except BaseException:
            os.close(handle)
            raise
        os.close(handle)


def _is_at(handle: int, path: Path) -> bool:
    """Returns whether an open file is still the one of that path."""
    try:
        return os.path.samestat(os.fstat(handle), path.lstat())
    except FileNotFoundError:
        return False


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[int]:
    path.parent.mkdir(parents=True, exist_ok=True)
    handle = _open(path)
    try:
        yield handle
    finally:
        os.close(handle)


def _open(path: Path) -> int:
    # The file is not always ours: through a link another file would be truncated, and opening a FIFO may wait.
    safely = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
    try:
        handle = os.open(path, os.O_RDWR | os.O_CREAT | safely, 0o666)
    except PermissionError:
        # Another user made the file: who may read it can lock it, and the process id in it is for people only.
        handle = os.open(path, os.O_RDONLY | safely)
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    return handle


@contextlib.contextmanager
def _noted(handle: int) -> Iterator[None]:
    """Writes this process's id into a lock file, and frees the lock at the end."""
    try:
        # Only an empty file or one with a process id is written to: it may be a file of the user's. On Windows, the
        # lock has moved the position.
        os.lseek(handle, 0, os.SEEK_SET)
        if not os.read(handle, _PID_BYTES).strip(_DIGITS):
            # On a full disk, or in another user's file, the id can't be written. The lock itself needs neither.
            with contextlib.suppress(OSError):
                os.ftruncate(handle, 0)
                os.lseek(handle, 0, os.SEEK_SET)
                os.write(handle, str(os.getpid()).encode())
        yield
    finally:
        _unlock(handle)


def _acquire(handle: int, path: Path, say: Callable[[str], object], what: str, *, wait: bool) -> bool:
    """Takes the lock; returns False if the file system has no locks."""
    has_waited = False
    while True:
        try:
            _try_lock(handle)
        except OSError as error:
            if error.errno not in _BUSY:
                say(f"{what}: this file system has no locks ({error.strerror}); start one run at a time")
                return False
            if not wait:
                raise HeldError(_holder(path)) from None
        else:
            return True
        if not has_waited:
            say(f"{what}: waiting for process {_holder(path)}, which holds the lock")
            has_waited = True
        time.sleep(_POLL_S)


def _holder(path: Path) -> str:
    """Returns the process id in a lock file, or `(unknown)`."""
    with contextlib.suppress(OSError, ValueError):
        pid = path.read_text()
        return pid if pid.isdigit() else "(unknown)"
    return "(unknown)"

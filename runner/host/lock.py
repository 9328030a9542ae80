"""A lock between processes that the kernel frees when its holder ends, however that happens."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

_POLL_SECONDS = 0.2
_DIGITS = b"0123456789"
_LONGEST = 32
_BUSY = {errno.EACCES, errno.EAGAIN, errno.EDEADLK}

if sys.platform == "win32":
    import msvcrt

    # Far behind the text in the file, since Windows also keeps others from reading a locked range.
    _OFFSET = 1 << 30

    def _try_lock(handle: int) -> None:
        os.lseek(handle, _OFFSET, os.SEEK_SET)
        msvcrt.locking(handle, msvcrt.LK_NBLCK, 1)

    def _unlock(handle: int) -> None:
        os.lseek(handle, _OFFSET, os.SEEK_SET)
        msvcrt.locking(handle, msvcrt.LK_UNLCK, 1)

else:
    import fcntl

    def _try_lock(handle: int) -> None:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def _unlock(handle: int) -> None:
        fcntl.flock(handle, fcntl.LOCK_UN)


@contextlib.contextmanager
def locked(path: Path, say: Callable[[str], object] = str, what: str = "") -> Iterator[None]:
    """Holds the lock file `path`, waiting as long as another process does.

    The file stays behind: removing it would let two processes lock two files of one name. Where the file system
    knows no locks, that is said once and the work goes on without.

    Args:
      path: the lock file; its folder is made where it is not there.
      say: told once that this process waits, and for whom; by default nobody is.
      what: what the lock is for, in words.

    Yields:
      Nothing; the lock is held inside the block.

    Raises:
      OSError: the file can't be created.
    """
    with _opened(path) as handle:
        held = _acquire(handle, path, say, what, wait=True)
        with _noted(handle) if held else contextlib.nullcontext():
            yield


class HeldError(RuntimeError):
    """A lock that another process holds.

    Attributes:
      holder: its process, as far as it said.
    """

    def __init__(self, holder: str) -> None:
        super().__init__(f"process {holder} holds it")
        self.holder = holder


@contextlib.contextmanager
def locked_at_once(path: Path, say: Callable[[str], object] = str, what: str = "") -> Iterator[None]:
    """Holds the lock file `path`, without waiting; the rest is as in `locked`.

    Args:
      path: the lock file; its folder is made where it is not there.
      say: told where the file system knows no locks.
      what: what the lock is for, in words.

    Yields:
      Nothing; the lock is held inside the block.

    Raises:
      HeldError: another process holds it.
      OSError: the file can't be created, or is none.
    """
    with _opened(path) as handle:
        held = _acquire(handle, path, say, what, wait=False)
        with _noted(handle) if held else contextlib.nullcontext():
            yield


def lock_until_exit(path: Path) -> int | None:
    """Locks a file for as long as this process lives; the kernel frees it however the process ends.

    The lock is the kernel's (on NFS the server's), so that process ids, which repeat in containers, play no part.

    Args:
      path: the lock file; made where it is not there, in a folder that is.

    Returns:
      The open file, whose closing frees the lock; None where the file system has no locks.

    Raises:
      HeldError: another process has locked it.
      OSError: the file can't be created, or is no regular file.
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
    # What lies there is not always ours: a link would lead to a file that is cut off, and a FIFO may wait.
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
    """Writes into a lock file who holds it, and frees it at the end."""
    try:
        if not os.read(handle, _LONGEST).strip(_DIGITS):  # a holder's, and no file of a user's
            with contextlib.suppress(OSError):  # a full disk, or another user's file: the lock itself needs neither
                os.ftruncate(handle, 0)
                os.lseek(handle, 0, os.SEEK_SET)
                os.write(handle, str(os.getpid()).encode())
        yield
    finally:
        _unlock(handle)


def _acquire(handle: int, path: Path, say: Callable[[str], object], what: str, *, wait: bool) -> bool:
    """Takes the lock; returns False where the file system knows none."""
    waited = False
    while True:
        try:
            _try_lock(handle)
        except OSError as error:
            if error.errno not in _BUSY:
                say(f"{what}: this file system has no locks ({error.strerror}), start one run at a time")
                return False
            if not wait:
                raise HeldError(_holder(path)) from None
        else:
            return True
        if not waited:
            say(f"{what}: waiting for process {_holder(path)}, which is at it")
            waited = True
        time.sleep(_POLL_SECONDS)


def _holder(path: Path) -> str:
    with contextlib.suppress(OSError, ValueError):
        pid = path.read_text()
        return pid if pid.isdigit() else "(unknown)"
    return "(unknown)"

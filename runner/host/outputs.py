"""Files that can't be written: an invalid config before a run begins, and a warning later on."""

from __future__ import annotations

import errno
import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TextIO

from runner.errors import PassingError, describe, passing
from runner.host import stages
from runner.host.signals import interruption
from runner.host.terminal import clean

logger = logging.getLogger(__name__)

# Process-wide, as stderr is: copies of its descriptor while that is redirected, the terminal's first.
_terminals: list[int] = []

# Errors of a disk that is full, read-only, broken or not this user's. Any other error is a bug, and shows as one.
_UNWRITABLE = {
    errno.ENOSPC,
    errno.EDQUOT,
    errno.EROFS,
    errno.EACCES,
    errno.EPERM,
    errno.EIO,
    errno.ENOTDIR,
    errno.EEXIST,
    errno.ENAMETOOLONG,
    errno.EFBIG,
    errno.EMFILE,
    errno.ENFILE,
}


@contextmanager
def required(folder: Path) -> Iterator[None]:
    """Rejects a run whose folder can't be written; the body writes into it.

    Raises:
      PassingError: it can't be written.
    """
    try:
        yield
    except OSError as error:
        raise unwritable(error, folder) from error


def unwritable(error: OSError, folder: Path | None = None) -> PassingError:
    """Returns the error for a run's folder that can't be written.

    Args:
      error: the error of the system.
      folder: the folder of the run; None: the one that the error names.
    """
    place = folder or error.filename or "the run's folder"
    reason = error.strerror or str(error)
    return passing(
        "hydra.run.dir",
        place,
        problem=f"must be a folder that can be written ({reason})",
        fix="free some space or fix its permissions, or set hydra.run.dir=<another folder>",
    )


def caused_by_disk(error: BaseException) -> OSError | None:
    """Returns the disk's error that caused another one, such as logging's; None: the cause is something else."""
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, OSError):
        cause = cause.__cause__ or cause.__context__
    if isinstance(cause, OSError) and cause.errno in _UNWRITABLE:
        return cause
    return None


@contextmanager
def spared(what: str) -> Iterator[None]:
    """Turns any failure to write what a run can do without into a warning of one line.

    Not only the disk fails: a library that draws or encodes foreign names may raise anything.

    Args:
      what: the file that the body writes, in words. A part of it may be left behind.
    """
    try:
        yield
    except OSError as error:
        warn(f"could not write {what} ({error.strerror or error}); continuing without it")
    except Exception as error:
        if interruption(error) is not None:
            raise
        logger.exception("could not write %s", what)
        warn(f"could not write {what} ({describe(error)}); continuing without it")


def warn(line: str) -> None:
    """Prints a warning of one line on stderr."""
    stages.leave_line()
    print(f"warning: {line}", file=sys.stderr, flush=True)
    # While native code's output goes into a log, so did this line.
    if _terminals and _is_descriptor_2(sys.stderr):
        with suppress(OSError):
            os.write(_terminals[0], clean(f"warning: {line}\n").encode())


@contextmanager
def warnings_on(terminal: int) -> Iterator[None]:
    """Prints warnings on a descriptor too, while that of stderr is redirected.

    Args:
      terminal: a copy of the descriptor of stderr.
    """
    _terminals.append(terminal)
    try:
        yield
    finally:
        _terminals.remove(terminal)


def _is_descriptor_2(stream: TextIO) -> bool:
    try:
        return stream.fileno() == 2
    except (OSError, ValueError):  # of memory, as a notebook's, or closed
        return False


def append_whole(path: Path, data: bytes, *, sync: bool = False) -> None:
    """Appends bytes to a file completely, or leaves it as it was.

    Args:
      path: the file; made where it is not there.
      data: what to append.
      sync: whether to return only when they are on the disk.

    Raises:
      OSError: the disk is full, or can't be written.
    """
    is_new = not path.exists()
    # Unbuffered: after an error, a buffer would be written again as the file closes.
    with path.open("ab", buffering=0) as file:
        before = file.tell()
        remaining = memoryview(data)
        try:
            while remaining:
                written = file.write(remaining)
                remaining = remaining[written:]
            if sync:
                os.fsync(file.fileno())
        except OSError:
            with suppress(OSError):
                file.truncate(before)
                if is_new:
                    path.unlink()
            raise

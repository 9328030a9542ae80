"""What a disk that can't be written means for a run: a refusal before it begins, and a line later on."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from runner.errors import ConfigError, invalid
from runner.host import stages

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
    """Refuses a run whose folder does not take what is written in the body.

    Raises:
      ConfigError: it can't be written.
    """
    try:
        yield
    except OSError as error:
        raise unwritable(error, folder) from error


def unwritable(error: OSError, folder: Path | None = None) -> ConfigError:
    """Words the refusal of a folder that can't be written.

    Args:
      error: what the system said.
      folder: of the run; null: the one that the error names.
    """
    place = folder or error.filename or "the run's folder"
    reason = error.strerror or str(error)
    return invalid(
        "hydra.run.dir",
        place,
        problem=f"a folder that can be written, and here that failed ({reason})",
        fix="make room or fix its rights, or set hydra.run.dir=<another folder>",
    )


def caused_by_disk(error: BaseException) -> OSError | None:
    """Returns what the disk said where that is behind an error, as behind one of logging's; None: it is another."""
    found: BaseException | None = error
    while found is not None and not isinstance(found, OSError):
        found = found.__cause__ or found.__context__
    return found if isinstance(found, OSError) and found.errno in _UNWRITABLE else None


@contextmanager
def spared(what: str) -> Iterator[None]:
    """Turns the failure to write a file that a run can do without into one line on stderr.

    Args:
      what: is written in the body, in words; a file that has come to nothing may be left behind.
    """
    try:
        yield
    except OSError as error:
        warn(f"{what} is not written ({error.strerror or error}); the run goes on without it")


def warn(line: str) -> None:
    """Prints a line of warning on stderr."""
    stages.leave_line()
    print(f"warning: {line}", file=sys.stderr, flush=True)


def append_whole(path: Path, data: bytes, *, sync: bool = False) -> None:
    """Appends all of some bytes to a file, or leaves it as it was.

    Args:
      path: the file; made where it is not there.
      data: what to append.
      sync: return when it is on the disk.

    Raises:
      OSError: the disk is full, or can't be written.
    """
    fresh = not path.exists()
    with path.open("ab", buffering=0) as file:  # a buffer would be written again as the file closes
        before = file.tell()
        left = memoryview(data)
        try:
            while left:
                left = left[file.write(left) :]
            if sync:
                os.fsync(file.fileno())
        except OSError:
            with suppress(OSError):
                file.truncate(before)
                if fresh:
                    path.unlink()
            raise

"""Logs, and files that can't be written: an invalid config before a run begins, and a warning later on."""

from __future__ import annotations

import errno
import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from runner.errors import PassingError, describe, passing
from runner.host import stages
from runner.host.secrets import scrub
from runner.host.signals import interruption
from runner.host.terminal import clean, note_incomplete

logger = logging.getLogger(__name__)

# Process-wide, as stderr is: copies of its descriptor while that is redirected, the terminal's first.
_terminals: list[int] = []

# Errors of a disk that is full, read-only, broken or not this user's. Any other error is a bug, and shows as one.
_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EMFILE, errno.ENFILE}
_UNWRITABLE = _FULL | {errno.EROFS, errno.EACCES, errno.EPERM, errno.EIO}
_NO_FOLDER = {errno.ENOTDIR, errno.EEXIST, errno.ENAMETOOLONG}


@contextmanager
def required(folder: Path) -> Iterator[None]:
    """Rejects, by a PassingError, a run whose folder can't be written; the body writes into it."""
    try:
        yield
    except OSError as error:
        raise unwritable(error, folder) from error


def unwritable(error: OSError, folder: Path | None = None, key: str = "hydra.run.dir") -> PassingError:
    """Returns the error for the folder of a key, or the place that the error names, that can't be written."""
    place = folder or error.filename or "the run's folder"
    problem = f"must be a folder that can be written ({error.strerror or error})"
    fix = f"free some space or fix its permissions, or set {key}=<another folder>"
    return passing(key, place, problem=problem, fix=fix)


def caused_by_disk(error: BaseException) -> OSError | None:
    """Returns the disk's error that caused another one, such as logging's; None: the cause is something else."""
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, OSError):
        cause = cause.__cause__ or cause.__context__
    if cause is not None and cause.errno not in _UNWRITABLE | _NO_FOLDER:
        return None
    return cause


@contextmanager
def spared(what: str) -> Iterator[None]:
    """Turns any failure to write what a run can do without into a warning of one line.

    Not only the disk fails: a library that draws or encodes foreign names may raise anything.
    """
    try:
        yield
    except Exception as error:
        if interruption(error) is not None:
            raise
        logger.exception("could not write %s", what)
        warn(f"could not write {what} ({describe(error)}); continuing without it")


def warn(line: str) -> None:
    """Prints a warning of one line on stderr."""
    stages.leave_line()
    print(f"warning: {line}", file=sys.stderr, flush=True)
    # While native code's output goes into a log, so did this line, unless stderr is a notebook's or closed.
    with suppress(OSError, ValueError):
        if _terminals and sys.stderr.fileno() == 2:
            os.write(_terminals[0], clean(f"warning: {line}\n").encode())


@contextmanager
def quiet_native_log(path: Path) -> Iterator[None]:
    """Appends native code's stderr to a file: TensorFlow's import reports there that it found no GPU.

    The runner's own warnings are still printed. If the file can't be written, the output is dropped.
    """
    sys.stderr.flush()
    # Native code writes to the file descriptor, which replacing `sys.stderr` would not redirect.
    stderr = os.dup(2)
    try:
        log = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
    except OSError:
        log = os.open(os.devnull, os.O_WRONLY)
    os.dup2(log, 2)
    os.close(log)
    _terminals.append(stderr)
    try:
        yield
    finally:
        _terminals.remove(stderr)
        os.dup2(stderr, 2)
        os.close(stderr)


class LogFile(logging.FileHandler):
    """A log file whose disk may be full: that is one warning, where logging prints a traceback per record."""

    _has_warned = False

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - logging's own name
        """Warns once that records are missing."""
        error = sys.exc_info()[1]
        if not isinstance(error, OSError):
            super().handleError(record)
        elif not self._has_warned:
            self._has_warned = True
            note_incomplete(self.baseFilename, error)
            warn(f"could not write {self.baseFilename} ({error.strerror}); continuing without a log")

    def close(self) -> None:
        """Closes the file, even if the disk did not take all of it."""
        with suppress(OSError):
            super().close()


class MaskedFormatter(logging.Formatter):
    """Formats log records and tracebacks without secrets of URIs and without terminal control characters."""

    def format(self, record: logging.LogRecord) -> str:
        """Returns the record's text."""
        return clean(scrub(super().format(record)))

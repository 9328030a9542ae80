"""Log files and their records, and output of native code: everything that does not belong on the terminal."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from runner.host.outputs import warn, warnings_on
from runner.host.secrets import scrub
from runner.host.terminal import clean, note_incomplete


class LogFile(logging.FileHandler):
    """A log file whose disk may be full: that is one warning, where logging prints a traceback per record."""

    _has_warned = False

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - logging's own name
        """Warns once that records are missing."""
        error = sys.exc_info()[1]
        if isinstance(error, OSError):
            self._warn(error)
        else:
            super().handleError(record)

    def flush(self) -> None:
        """Flushes as much as the disk takes."""
        try:
            super().flush()
        except OSError as error:
            self._warn(error)

    def _warn(self, error: OSError) -> None:
        if not self._has_warned:
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


@contextmanager
def quiet_native_log(path: Path) -> Iterator[None]:
    """Redirects native code's stderr into a file: TensorFlow's import reports there that it found no GPU.

    The runner's own warnings are still printed.

    Args:
      path: file to append to; if it can't be written, the output is dropped.
    """
    sys.stderr.flush()
    # Native code writes to the file descriptor, which replacing `sys.stderr` would not redirect.
    stderr = os.dup(2)
    try:
        with _appending(path) as log, warnings_on(stderr):
            os.dup2(log, 2)
            yield
    finally:
        os.dup2(stderr, 2)
        os.close(stderr)


@contextmanager
def _appending(path: Path) -> Iterator[int]:
    try:
        log = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
    except OSError:
        log = os.open(os.devnull, os.O_WRONLY)
    try:
        yield log
    finally:
        os.close(log)

"""Keeps the terminal to what the runner itself has to say."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from runner.host.outputs import warn
from runner.host.secrets import scrub
from runner.host.terminal import clean


class LogFile(logging.FileHandler):
    """A log file whose disk may be full: that is one line on stderr, where logging prints a traceback a record."""

    _told = False

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - logging's own name
        """Says once that records are left out."""
        error = sys.exc_info()[1]
        if isinstance(error, OSError):
            self._tell(error)
        else:
            super().handleError(record)

    def flush(self) -> None:
        """Flushes what the disk takes."""
        try:
            super().flush()
        except OSError as error:
            self._tell(error)

    def _tell(self, error: OSError) -> None:
        if not self._told:
            self._told = True
            warn(f"{self.baseFilename} can't be written ({error.strerror}); the run goes on without its log")

    def close(self) -> None:
        """Closes the file, whatever of it the disk did not take."""
        with suppress(OSError):
            super().close()


class MaskedFormatter(logging.Formatter):
    """Formats log records, tracebacks included, without the secrets of URIs and what would control a terminal."""

    def format(self, record: logging.LogRecord) -> str:
        """Returns the record's text."""
        return clean(scrub(super().format(record)))


@contextmanager
def quiet_native_log(path: Path) -> Iterator[None]:
    """Sends what native code writes to stderr into a file: TensorFlow's import says there that it found no GPU.

    Args:
      path: file to append to; where it can't be written, what would go there is dropped.
    """
    sys.stderr.flush()
    kept = os.dup(2)
    try:
        with _appending(path) as log:
            os.dup2(log, 2)
            yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)


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

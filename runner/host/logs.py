"""Log files and their records."""

from __future__ import annotations

import logging
import sys
from contextlib import suppress

from runner.host.outputs import warn
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

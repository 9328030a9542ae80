"""Keeps the terminal to what the runner itself has to say."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from runner.tracking.secrets import scrub


class MaskedFormatter(logging.Formatter):
    """Formats log records, tracebacks included, without the secrets of URIs."""

    def format(self, record: logging.LogRecord) -> str:
        """Returns the record's text."""
        return scrub(super().format(record))


@contextmanager
def quiet_native_log(path: Path) -> Iterator[None]:
    """Sends what native code writes to stderr into a file: TensorFlow's import says there that it found no GPU.

    Args:
      path: file to append to.
    """
    sys.stderr.flush()
    kept = os.dup(2)
    try:
        with path.open("ab") as log:
            os.dup2(log.fileno(), 2)
            yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)

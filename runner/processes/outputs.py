"""Output and logs of several processes: process 0 prints, the others write to files in the run's folder.

<run>/runner.log                 log of all processes, in the order of arrival
<run>/processes/1/runner.log     log of process 1
<run>/processes/1/output.log     standard output of process 1
<run>/native.log                 standard output of process 0's native libraries
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from runner.processes.member import Member
from runner.processes.messages import printable
from runner.processes.team import Team

FOLDER = "processes"
OUTPUT = "output.log"
NATIVE = "native.log"


def own_folder(folder: Path, team: Team) -> Path:
    """Returns a process's folder: the run's for process 0, else one within it."""
    if team.is_first:
        return folder
    return folder / FOLDER / str(team.index)


def redirect(folder: Path, team: Team) -> None:
    """Redirects standard output to a file: for process 0 that of native code, for the others all of it.

    Args:
      folder: this process's.
      team: the processes.
    """
    sys.stdout.flush()
    if team.is_first:
        _keep_python_output()
    name = NATIVE if team.is_first else OUTPUT
    with suppress(OSError):
        handle = os.open(folder / name, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
        os.dup2(handle, 1)
        os.close(handle)


def share_log(team: Team) -> None:
    """Sends the log records of the others to process 0's log; called after a process's own log is set up."""
    if isinstance(team, Member) and team.is_first:
        team.on_log = _log_received
    elif isinstance(team, Member):
        logging.getLogger().addHandler(_Sender(team))


def _keep_python_output() -> None:
    """Keeps Python's standard output where it is when descriptor 1 is redirected, by a copy of the descriptor."""
    # A wrapper of the stream, see `runner.host.terminal`, or the stream itself.
    stdout: Any = sys.stdout
    stream = getattr(stdout, "_stream", stdout)
    copy = os.fdopen(os.dup(1), "w", encoding=stream.encoding, errors=stream.errors, buffering=1)
    if stream is stdout:
        sys.stdout = copy
    else:
        stdout._stream = copy


class _Sender(logging.Handler):
    """Sends this process's log records to process 0."""

    def __init__(self, member: Member) -> None:
        super().__init__(logging.INFO)
        self._member = member

    def emit(self, record: logging.LogRecord) -> None:
        """Sends a record."""
        # Logging must not fail a run.
        with suppress(Exception):
            text = record.getMessage()
            if record.exc_info:
                text += "\n" + logging.Formatter().formatException(record.exc_info)
            self._member.log({"name": record.name, "level": record.levelno, "text": text})


def _log_received(said: Mapping[str, Any]) -> None:
    """Logs a record of another process."""
    # Line by line: a traceback has several lines, but no other control characters.
    text = "\n".join(printable(line) for line in str(said["text"]).splitlines())
    logging.getLogger(printable(said["name"])).log(int(said["level"]), "[process %s] %s", said["index"], text)

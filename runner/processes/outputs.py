"""What several processes print and log: process 0 shows, the others write below the run's folder.

<run>/runner.log                 the log of all, in the order in which the records came
<run>/processes/1/runner.log     process 1's own
<run>/processes/1/output.log     what process 1 would have shown
<run>/native.log                 what process 0's libraries print past Python
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
    """Returns a process's folder, below the run's but for process 0's."""
    return folder if team.is_first else folder / FOLDER / str(team.index)


def part(folder: Path, team: Team) -> None:
    """Leads standard output into a file: all of a process that shows nothing, of process 0 what native code prints.

    Args:
      folder: this process's.
      team: the processes.
    """
    sys.stdout.flush()
    if team.is_first:
        _keep_shown()
    with suppress(OSError):
        handle = os.open(folder / (NATIVE if team.is_first else OUTPUT), os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
        os.dup2(handle, 1)
        os.close(handle)


def share_log(team: Team) -> None:
    """Brings what the others log into process 0's log; comes when a process's own log is set up."""
    if isinstance(team, Member) and team.is_first:
        team.on_log = _logged
    elif isinstance(team, Member):
        logging.getLogger().addHandler(_Sender(team))


def _keep_shown() -> None:
    """Lets what Python prints go where standard output went, whatever becomes of descriptor 1."""
    shown: Any = sys.stdout  # what stands in for it, see `runner.host.terminal`
    stream = getattr(shown, "_stream", shown)
    kept = os.fdopen(os.dup(1), "w", encoding=stream.encoding, errors=stream.errors, buffering=1)
    if stream is shown:
        sys.stdout = kept
    else:
        shown._stream = kept


class _Sender(logging.Handler):
    """Sends what this process logs to process 0's log."""

    def __init__(self, member: Member) -> None:
        super().__init__(logging.INFO)
        self._member = member

    def emit(self, record: logging.LogRecord) -> None:
        """Sends one."""
        with suppress(Exception):
            text = record.getMessage()
            if record.exc_info:
                text += "\n" + logging.Formatter().formatException(record.exc_info)
            self._member.log({"name": record.name, "level": record.levelno, "text": text})


def _logged(said: Mapping[str, Any]) -> None:
    # A traceback has lines, and nothing else that is not printable.
    text = "\n".join(printable(line) for line in str(said["text"]).splitlines())
    logging.getLogger(printable(said["name"])).log(int(said["level"]), "[process %s] %s", said["index"], text)

"""Output and logs of several processes: process 0 prints, the others write to files in the run's folder.

<run>/runner.log                 log of process 0
<run>/processes/1/runner.log     log of process 1
<run>/processes/1/output.log     standard output of process 1
<run>/native.log                 standard output of process 0's native libraries
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

from runner.cluster.team import Team

FOLDER = "processes"
OUTPUT = "output.log"
NATIVE = "native.log"


def own_folder(folder: Path, team: Team) -> Path:
    """Returns a process's folder: the run's for process 0, else one within it."""
    if team.is_first:
        return folder
    return folder / FOLDER / str(team.index)


def redirect(folder: Path, team: Team) -> None:
    """Redirects standard output to a file in this process's folder: for process 0 that of native code, else all of
    it.
    """
    sys.stdout.flush()
    if team.is_first:
        _keep_python_output()
    name = NATIVE if team.is_first else OUTPUT
    with suppress(OSError):
        handle = os.open(folder / name, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
        os.dup2(handle, 1)
        os.close(handle)


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

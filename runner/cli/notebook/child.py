"""A command in a process of its own, whose output appears where this process's does, also in a notebook's cell."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress

from runner.cluster.launch import LAUNCHER_VARIABLE
from runner.errors import EXIT_REFUSED, ConfigError, EngineError

_ERROR = "error: "
_WARNING = "warning: "


def run(module: str, arguments: Sequence[str], *, quiet: bool = False) -> None:
    """Runs a command to its end; Ctrl-C, or a notebook's stop button, ends it as it does on a terminal.

    Args:
      module: as `runner.plan`.
      arguments: the arguments of the command.
      quiet: shows nothing but warnings.

    Raises:
      ConfigError: its config is invalid.
      EngineError: it failed, or a signal ended it.
      KeyboardInterrupt: this process was interrupted; the command has ended before that.
    """
    process = subprocess.Popen(
        [sys.executable, "-m", module, *arguments],
        env={**os.environ, "PYTHONUNBUFFERED": "1", LAUNCHER_VARIABLE: str(os.getpid())},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    )
    assert process.stdout is not None
    line = f"python -m {module} failed"
    try:
        for output in process.stdout:
            if output.startswith(_ERROR):
                line = output.removeprefix(_ERROR).strip()
            elif not quiet or output.startswith(_WARNING):
                print(output, end="", flush=True)
    except KeyboardInterrupt:
        with suppress(ProcessLookupError):
            process.send_signal(signal.SIGINT)  # a second one within a second counts as the same
        process.communicate()  # it saves the run first
        raise
    code = process.wait()
    if code == EXIT_REFUSED:
        raise ConfigError(line)
    if code:
        raise EngineError(line)

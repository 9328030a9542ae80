"""A command in a process of its own, whose output appears where this process's does, also in a notebook's cell."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from typing import IO

from runner.errors import EXIT_REFUSED, ConfigError, EngineError
from runner.processes.launch import LAUNCHER_VARIABLE

_ERROR = "error: "
_LAST_OUTPUT_S = 5.0  # longest wait for it after the command has ended; a child of it may keep the pipe open


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
    stdout: int | None = None
    if quiet:
        stdout = subprocess.DEVNULL
    elif not _is_plain_stdout():
        stdout = subprocess.PIPE
    process = subprocess.Popen(
        [sys.executable, "-m", module, *arguments],
        env={**os.environ, "PYTHONUNBUFFERED": "1", LAUNCHER_VARIABLE: str(os.getpid())},
        stdin=subprocess.DEVNULL,
        stdout=stdout,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
    )
    errors: list[str] = []
    assert process.stderr is not None
    readers = [threading.Thread(target=_read_errors, args=(process.stderr, errors), daemon=True)]
    if process.stdout is not None:
        readers.append(threading.Thread(target=_show, args=(process.stdout,), daemon=True))
    for reader in readers:
        reader.start()
    try:
        code = process.wait()
    except KeyboardInterrupt:
        with suppress(ProcessLookupError):
            process.send_signal(signal.SIGINT)  # a second one within a second counts as the same
        process.wait()  # it saves the run first
        raise
    finally:
        for reader in readers:
            reader.join(timeout=_LAST_OUTPUT_S)
    if code:
        line = f"python -m {module} ended with exit code {code}"
        if errors:
            line = errors[-1]
        if code == EXIT_REFUSED:
            raise ConfigError(line)
        raise EngineError(line)


def _is_plain_stdout() -> bool:
    """Returns whether a child's standard output appears where this process's does, as it does not in a notebook."""
    try:
        return isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.fileno() == 1
    except (OSError, ValueError):
        return False


def _read_errors(stream: IO[str], errors: list[str]) -> None:
    """Collects a command's lines of error, and prints its warnings."""
    for line in stream:
        if line.startswith(_ERROR):
            errors.append(line.removeprefix(_ERROR).strip())
        else:
            sys.stderr.write(line)


def _show(stream: IO[str]) -> None:
    """Prints a command's output line by line."""
    for line in stream:
        sys.stdout.write(line)
        sys.stdout.flush()

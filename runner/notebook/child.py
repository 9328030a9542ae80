"""A command in a process of its own, whose output appears where this process's does, also in a notebook's cell."""

from __future__ import annotations

import codecs
import fcntl
import io
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import termios
import threading
from collections.abc import Sequence
from contextlib import suppress
from typing import IO

from runner.errors import EXIT_REFUSED, ConfigError, EngineError
from runner.processes.launch import LAUNCHER_VARIABLE

# Size of the terminal that the command sees: a cell of a notebook is about 100 characters wide.
_ROWS = 24
_COLUMNS = 100
_ERROR = "error: "
# Control sequences of a terminal other than colors: a cell would show them as text.
_CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-ln-z]|\x1b[()=>][0-9A-Z]?")
_LAST_OUTPUT_S = 5.0  # longest wait for it after the command has ended; a child of it may keep the pipe open
_CHUNK = 1 << 16  # bytes that are read at a time


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
    terminal = None
    if not quiet and not _is_plain_stdout():
        terminal = _open_terminal()
    stdout: int | None = None
    if quiet:
        stdout = subprocess.DEVNULL
    elif terminal is not None:
        stdout = terminal[1]
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
    if terminal is not None:
        os.close(terminal[1])
        readers.append(threading.Thread(target=_show, args=(terminal[0],), daemon=True))
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


def _open_terminal() -> tuple[int, int]:
    """Returns both ends of a pseudo-terminal, on which the command draws its bar."""
    own_end, command_end = pty.openpty()
    fcntl.ioctl(command_end, termios.TIOCSWINSZ, struct.pack("HHHH", _ROWS, _COLUMNS, 0, 0))
    return own_end, command_end


def _read_errors(stream: IO[str], errors: list[str]) -> None:
    """Collects a command's lines of error, and prints its warnings."""
    for line in stream:
        if line.startswith(_ERROR):
            errors.append(line.removeprefix(_ERROR).strip())
        else:
            sys.stderr.write(line)


def _show(handle: int) -> None:
    """Copies the terminal's output to this process's, until the command has closed it."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    with suppress(OSError):  # Linux reports the closed end as an error
        while data := os.read(handle, _CHUNK):
            sys.stdout.write(for_cell(decoder.decode(data)))
            sys.stdout.flush()
    os.close(handle)


def for_cell(text: str) -> str:
    r"""Returns a terminal's output as a notebook's cell shows it: colors stay, and a bar is written over.

    >>> for_cell("\x1b[?25l\x1b[2Kepoch\x1b[31m 1\x1b[0m\r\n")
    'epoch\x1b[31m 1\x1b[0m\n'
    """
    return _CONTROL.sub("", text).replace("\r\n", "\n")

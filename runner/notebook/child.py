"""A command in a process of its own, whose output appears where this process's does, a notebook's cell too."""

from __future__ import annotations

import codecs
import io
import os
import re
import signal
import struct
import subprocess
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from typing import IO

from runner.errors import ConfigError, EngineError
from runner.processes.launch import LAUNCHER_VARIABLE

# of the terminal that the command sees
_ROWS = 24
_COLUMNS = 100
_ERROR = "error: "
# Of a terminal's control sequences a cell knows colors alone: others would be shown as they are.
_CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-ln-z]|\x1b[()=>][0-9A-Z]?")
_REFUSED = 2


def run(module: str, arguments: Sequence[str], *, quiet: bool = False) -> None:
    """Runs a command to its end; Ctrl-C, or a notebook's stop button, ends it as it does on a terminal.

    Args:
      module: as `runner.plan`.
      arguments: of the command.
      quiet: shows nothing but warnings.

    Raises:
      ConfigError: it was refused.
      EngineError: it failed, or a signal ended it.
      KeyboardInterrupt: this process was interrupted; the command has ended before that.
    """
    terminal = None if quiet or _is_plain_stdout() else _terminal()
    process = subprocess.Popen(
        [sys.executable, "-m", module, *arguments],
        env={**os.environ, "PYTHONUNBUFFERED": "1", LAUNCHER_VARIABLE: str(os.getpid())},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL if quiet else terminal[1] if terminal else None,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
    )
    errors: list[str] = []
    assert process.stderr is not None
    readers = [threading.Thread(target=_read_errors, args=(process.stderr, errors), daemon=True)]
    if terminal:
        os.close(terminal[1])
        readers.append(threading.Thread(target=_show, args=(terminal[0],), daemon=True))
    for reader in readers:
        reader.start()
    try:
        code = process.wait()
    except KeyboardInterrupt:
        with suppress(ProcessLookupError):
            process.send_signal(signal.SIGINT)  # a second one within a second counts as the same
        process.wait()
        raise
    finally:
        for reader in readers:
            reader.join(timeout=5.0)
    if code:
        line = errors[-1] if errors else f"python -m {module} ended with exit code {code}"
        raise ConfigError(line) if code == _REFUSED else EngineError(line)


def _is_plain_stdout() -> bool:
    """Tells whether a child's own standard output appears where this process's does."""
    try:
        return isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.fileno() == 1
    except (OSError, ValueError):
        return False


def _terminal() -> tuple[int, int] | None:
    """Returns both ends of a terminal for the command, which then draws its bar; None where there is none."""
    if sys.platform == "win32":
        return None
    import fcntl
    import pty
    import termios

    own, other = pty.openpty()
    fcntl.ioctl(other, termios.TIOCSWINSZ, struct.pack("HHHH", _ROWS, _COLUMNS, 0, 0))
    return own, other


def _read_errors(stream: IO[str], errors: list[str]) -> None:
    for line in stream:
        if line.startswith(_ERROR):
            errors.append(line.removeprefix(_ERROR).strip())
        else:
            sys.stderr.write(line)


def _show(handle: int) -> None:
    """Writes to this process's output what comes from the terminal, until the command has closed it."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    with suppress(OSError):  # Linux says so when the other end is closed
        while data := os.read(handle, 1 << 16):
            sys.stdout.write(for_cell(decoder.decode(data)))
            sys.stdout.flush()
    os.close(handle)


def for_cell(text: str) -> str:
    r"""Returns a terminal's output as a notebook's cell shows it: colors stay, and a bar is written over.

    >>> for_cell("\x1b[?25l\x1b[2Kepoch\x1b[31m 1\x1b[0m\r\n")
    'epoch\x1b[31m 1\x1b[0m\n'
    """
    return _CONTROL.sub("", text).replace("\r\n", "\n")

"""One job in a process of its own: its output goes to a log file and, prefixed, to the terminal."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from runner.host.outputs import append_whole, spared
from runner.host.signals import SIGNALS
from runner.processes.launch import AS_TYPED, LAUNCHER_VARIABLE
from runner.processes.place import scheduled
from runner.sweep.jobs import OUTCOME_FILE, Outcome, outcome_of

LOG_FILE = "job.log"
STOP_FILE = "stop"  # made by a launcher elsewhere that wants the job to end
_LAST_WORDS_S = 2.0  # wait for output of a process that has ended; its own children may hold the pipe open


@dataclass(frozen=True)
class Command:
    """What to run.

    Attributes:
      arguments: the command line.
      environment: variables set besides those of this process.
      folder: where `job.log` and the outcome go.
      prefix: stands before each line on the terminal; null: nothing is shown there.
    """

    arguments: Sequence[str]
    folder: Path
    environment: dict[str, str] = field(default_factory=dict)
    prefix: str | None = ""


def command_module() -> str:
    """Returns the module of the command that this process runs, as `runner` or `runner.plan`."""
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    name = spec.name.removesuffix(".__main__") if spec else "runner"
    return name if name.split(".")[0] == "runner" else "runner"


class JobProcess:
    """A started job. It has a session of its own, so that a terminal's Ctrl-C reaches only the launcher."""

    def __init__(self, command: Command, log: str = LOG_FILE) -> None:
        command.folder.mkdir(parents=True, exist_ok=True)
        self._command, self._began = command, time.monotonic()
        self._log = command.folder / log
        self._error = ""
        self._process = subprocess.Popen(
            command.arguments,
            env={
                **os.environ,
                "PYTHONUNBUFFERED": "1",
                **AS_TYPED,
                LAUNCHER_VARIABLE: str(os.getpid()),
                **command.environment,
            },
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        self._reader = threading.Thread(target=self._read, name="job-output", daemon=True)
        self._reader.start()

    @property
    def seconds(self) -> float:
        """Wall time since the start."""
        return time.monotonic() - self._began

    def poll(self) -> Outcome | None:
        """Returns how the job ended; None while it runs."""
        code = self._process.poll()
        if code is None:
            return None
        seconds = self.seconds
        self._reader.join(_LAST_WORDS_S)
        return outcome_of(code, seconds, self._error)

    def stop(self) -> None:
        """Asks the job to end between two steps, which records it as KILLED."""
        self._signal(signal.SIGTERM)

    def kill(self) -> None:
        """Ends the job and whatever it started."""
        self._signal(signal.SIGKILL)

    def _signal(self, signum: int) -> None:
        with suppress(ProcessLookupError, PermissionError):
            if signum == signal.SIGKILL:
                os.killpg(self._process.pid, signum)
            else:
                self._process.send_signal(signum)

    def _read(self) -> None:
        assert self._process.stdout is not None
        log, broken = self._log, False
        with suppress(OSError):
            log.write_bytes(b"")
        for line in self._process.stdout:  # to its end, whatever becomes of the log: a full pipe would hold the job
            with suppress(OSError) if broken else spared(str(log)):
                before, broken = broken, True
                append_whole(log, line.encode())
                broken = before
            if line.startswith("error: "):
                self._error = line.removeprefix("error: ").strip()
            _show(line, self._command.prefix, sys.stdout)


def _show(line: str, prefix: str | None, out: IO[str]) -> None:
    if prefix is not None:
        with suppress(OSError, ValueError):  # the terminal may have gone
            out.write(prefix + line)
            out.flush()


def run_to_end(command: Command) -> Outcome:
    """Runs a job where this process is, as on a cluster's node, and leaves its outcome in its folder.

    A signal that ends a command, or a file `stop` in the folder, ends the job cleanly. Where a scheduler runs it in
    several processes, each runs one of the job's, and the first leaves the outcome.

    Args:
      command: what to run.

    Returns:
      How it ended.

    Raises:
      KeyboardInterrupt: a signal came; the job has ended.
    """
    place = scheduled()
    job, signals = JobProcess(command, f"job-{place.index}.log" if place and place.index else LOG_FILE), []
    before = {one: signal.signal(one, lambda number, _: signals.append(number)) for one in SIGNALS}
    stopped = False
    try:
        while (outcome := job.poll()) is None:
            if not stopped and (signals or (command.folder / STOP_FILE).exists()):
                stopped = True
                job.stop()
            time.sleep(0.05)
    finally:
        for signum, handler in before.items():
            signal.signal(signum, handler)
    if place is None or place.index == 0:
        with spared(str(command.folder / OUTCOME_FILE)):
            outcome.write(command.folder)
    if signals:
        raise KeyboardInterrupt
    return outcome

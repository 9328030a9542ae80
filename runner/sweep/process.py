"""One job in a process of its own, whose output goes to a log file."""

from __future__ import annotations

import codecs
import io
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from runner.host.outputs import append_whole, spared
from runner.host.signals import SIGNALS
from runner.processes.launch import AS_TYPED, LAUNCHER_VARIABLE
from runner.processes.place import scheduled
from runner.sweep.jobs import OUTCOME_FILE, Outcome, outcome_of

LOG_FILE = "job.log"
STOP_FILE = "stop"  # made by a launcher elsewhere that wants the job to end
Said = Callable[[str], None]
_LAST_WORDS_S = 2.0  # wait for output of a process that has ended; its own children may hold the pipe open


@dataclass(frozen=True)
class Command:
    """What to run.

    Attributes:
      arguments: the command line.
      environment: variables set besides those of this process.
      folder: where `job.log` and the outcome go.
      is_shown: whether what it prints is shown where it runs, too.
    """

    arguments: Sequence[str]
    folder: Path
    environment: dict[str, str] = field(default_factory=dict)
    is_shown: bool = True


class JobProcess:
    """A started job. It has a session of its own, so that a terminal's Ctrl-C reaches only the launcher."""

    def __init__(self, command: Command, log: str = LOG_FILE, said: Said = lambda _: None) -> None:
        """Starts the job.

        Args:
          command: what to run.
          log: name of the file in its folder that gets what it prints.
          said: is told, in another thread, each line that it prints, and the beginning of one that is not whole yet.
        """
        command.folder.mkdir(parents=True, exist_ok=True)
        self._said = said
        self._began = time.monotonic()
        self._log = command.folder / log
        self._is_broken = False
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
        stream = self._process.stdout
        assert isinstance(stream, io.BufferedReader)
        with suppress(OSError):
            self._log.write_bytes(b"")
        decoded = codecs.getincrementaldecoder("utf-8")("replace")
        text = ""
        while data := stream.read1():  # to its end, whatever becomes of the log: a full pipe would hold the job
            *lines, text = (text + decoded.decode(data)).split("\n")
            for line in lines:
                self._take(f"{line}\n")
            self._said(text)
        self._take(text)

    def _take(self, line: str) -> None:
        with suppress(OSError) if self._is_broken else spared(str(self._log)):
            before = self._is_broken
            self._is_broken = True
            append_whole(self._log, line.encode())
            self._is_broken = before
        if line.startswith("error: "):
            self._error = line.removeprefix("error: ").strip()
        self._said(line)


def _show(text: str) -> None:
    if text.endswith("\n"):
        with suppress(OSError, ValueError):  # the terminal may have gone
            sys.stdout.write(text)
            sys.stdout.flush()


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
    log = f"job-{place.index}.log" if place and place.index else LOG_FILE
    job = JobProcess(command, log, _show if command.is_shown else lambda _: None)
    signals = list[int]()
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

"""A job in a process of its own, whose output goes to a log file."""

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

from runner.cli.sweep.jobs import (
    OUTCOME_FILE,
    Outcome,
    outcome_of,
)
from runner.cluster.launch import (
    AS_TYPED,
    LAUNCHER_VARIABLE,
)
from runner.cluster.place import scheduled
from runner.host.outputs import append_whole, spared
from runner.host.signals import SIGNALS

LOG_FILE = "job.log"
STOP_FILE = "stop"  # a launcher on another machine writes it to end the job
Said = Callable[[str], None]
# Longest wait for the last output of a process that has ended; a child of it may keep the pipe open for ever.
_LAST_OUTPUT_S = 2.0
_POLL_S = 0.05  # of a job on a cluster's node, whose signals and stop file can wait that long
_ERROR = "error: "  # how a command's one line of error begins


@dataclass(frozen=True)
class Command:
    """A command to run as a job.

    Attributes:
      arguments: the command line.
      folder: where `job.log` and the outcome go.
      environment: variables in addition to those of this process.
      is_shown: whether its output is printed where it runs, too.
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
          command: to run.
          log: name of the file in its folder that gets its output.
          said: is called, in another thread, with each line of output, and with the beginning of an incomplete line.
        """
        command.folder.mkdir(parents=True, exist_ok=True)
        self._said = said
        self._started_at = time.monotonic()
        self._log = command.folder / log
        self._log_failed = False
        self._error = ""
        self._process = subprocess.Popen(
            command.arguments,
            env={
                **os.environ,
                "PYTHONUNBUFFERED": "1",  # else the display and the log lag behind by a buffer
                **AS_TYPED,
                LAUNCHER_VARIABLE: str(os.getpid()),
                **command.environment,
            },
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            # So that a terminal's Ctrl-C reaches the launcher alone, which ends its jobs one by one.
            start_new_session=True,
        )
        self._reader = threading.Thread(target=self._read, name="job-output", daemon=True)
        self._reader.start()

    @property
    def seconds(self) -> float:
        """Wall time since the start."""
        return time.monotonic() - self._started_at

    def poll(self) -> Outcome | None:
        """Returns how the job ended; None while it runs."""
        code = self._process.poll()
        if code is None:
            return None
        seconds = self.seconds
        self._reader.join(_LAST_OUTPUT_S)
        return outcome_of(code, seconds, self._error)

    def stop(self) -> None:
        """Asks the job to end between two steps, which records it as KILLED."""
        with suppress(ProcessLookupError, PermissionError):  # it may have ended
            self._process.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Ends the job and whatever it started."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)

    def _read(self) -> None:
        """Reads the output to its end, whatever happens to the log: a full pipe would block the job."""
        stream = self._process.stdout
        assert isinstance(stream, io.BufferedReader)
        with suppress(OSError):
            self._log.write_bytes(b"")
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        incomplete = ""
        while data := stream.read1():
            text = incomplete + decoder.decode(data)
            *lines, incomplete = text.split("\n")
            for line in lines:
                self._take(f"{line}\n")
            self._said(incomplete)
        self._take(incomplete)

    def _take(self, line: str) -> None:
        """Writes a line to the log; a log that can't be written is a warning once."""
        with suppress(OSError) if self._log_failed else spared(str(self._log)):
            failed_before = self._log_failed
            self._log_failed = True  # stays so if the next line raises
            append_whole(self._log, line.encode())
            self._log_failed = failed_before
        if line.startswith(_ERROR):
            self._error = line.removeprefix(_ERROR).strip()
        self._said(line)


def _show(text: str) -> None:
    if text.endswith("\n"):
        with suppress(OSError, ValueError):  # the terminal may be closed
            sys.stdout.write(text)
            sys.stdout.flush()


def run_to_end(command: Command) -> Outcome:
    """Runs a job where this process is, as on a cluster's node, and leaves its outcome in its folder.

    A signal that ends a command, or a file `stop` in the folder, ends the job cleanly. Where a scheduler runs it in
    several processes, each runs one of the job's, and the first one writes the outcome.

    Args:
      command: to run.

    Returns:
      How it ended.

    Raises:
      KeyboardInterrupt: a signal came; the job has ended.
    """
    place = scheduled()
    is_first = place is None or place.index == 0
    log = LOG_FILE
    if place is not None and not is_first:
        log = f"job-{place.index}.log"
    job = JobProcess(command, log, _show if command.is_shown else lambda _: None)
    received: list[int] = []
    handlers = {signum: signal.signal(signum, lambda number, _: received.append(number)) for signum in SIGNALS}
    is_stopping = False
    try:
        while (outcome := job.poll()) is None:
            should_stop = bool(received) or (command.folder / STOP_FILE).exists()
            if should_stop and not is_stopping:
                is_stopping = True
                job.stop()
            time.sleep(_POLL_S)
    finally:
        for signum, handler in handlers.items():
            signal.signal(signum, handler)
    if is_first:
        with spared(str(command.folder / OUTCOME_FILE)):
            outcome.write(command.folder)
    if received:
        raise KeyboardInterrupt
    return outcome

"""Starts a command, and starts it again when its run is lost (`python -m runner.supervise -- <command>`)."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from types import FrameType

from runner.checkpoint.arguments import value_of
from runner.cluster import restarts
from runner.config.schema import AUTO
from runner.errors import EXIT_REFUSED
from runner.host.signals import SIGNALS

_USAGE = "python -m runner.supervise -- python -m runner resume=auto name=exp1 ..."
_MOST = "cluster.restarts"
# Used where the command sets no limit of its own: enough for a bad night, and few enough that a run which fails at
# once each time ends within minutes.
_DEFAULT_MOST = 10
# Between two looks for a signal.
_POLL_S = 0.1


def main(arguments: Sequence[str]) -> int:
    """Supervises a command, which is started again as often as its `cluster.restarts` says.

    Returns:
      The exit code of the command's last start; 2 if the command line is invalid.
    """
    command = list(arguments)
    if command[:1] == ["--"]:
        command = command[1:]
    problem = _problem(command)
    if problem is not None:
        print(f"error: {problem}", file=sys.stderr)
        return EXIT_REFUSED
    supervisor = _Supervisor(command)
    previous = {}
    for signum in SIGNALS:
        if signal.getsignal(signum) != signal.SIG_IGN:
            previous[signum] = signal.signal(signum, supervisor.pass_on)
    most = int(value_of(command, _MOST) or _DEFAULT_MOST)
    try:
        return restarts.run(supervisor.start, most, supervisor.is_stopped, supervisor.sleep)
    finally:
        for signum, handler in previous.items():
            signal.signal(signum, handler)


def _problem(command: Sequence[str]) -> str | None:
    """Returns what is wrong with a command line; None: nothing is."""
    if not command or command[0].startswith("-"):
        return f"runner.supervise: needs a command; write {_USAGE}"
    if value_of(command, "resume") != AUTO:
        fix = "add resume=auto name=<name> to the command"
        return f"runner.supervise: {shlex.join(command)}: a restart must continue the run; {fix}"
    most = value_of(command, _MOST)
    if most and not most.isdigit():
        return f"{_MOST}={most}: must be an integer of at least 0; set {_MOST}={_DEFAULT_MOST}"
    return None


class _Supervisor:
    """The command that runs, and the signals that this process has received."""

    def __init__(self, command: Sequence[str]) -> None:
        self._command = command
        self._process: subprocess.Popen[bytes] | None = None
        self._signals: list[int] = []

    def start(self, variables: Mapping[str, str]) -> int:
        """Runs the command to its end; returns its exit code, 128 + n if signal n has killed it."""
        try:
            self._process = subprocess.Popen(self._command, env={**os.environ, **variables})
        except OSError as error:
            print(f"error: {self._command[0]} can't be started ({error.strerror})", file=sys.stderr)
            return EXIT_REFUSED
        if self._signals:
            # It came between the look at the signals and the start.
            self._process.send_signal(self._signals[-1])
        code = self._process.wait()
        return code if code >= 0 else 128 - code

    def pass_on(self, signum: int, _: FrameType | None) -> None:
        """Handles a signal: the command gets it, and is not started again."""
        self._signals.append(signum)
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signum)

    def is_stopped(self) -> bool:
        """Returns whether a signal has come."""
        return bool(self._signals)

    def sleep(self, seconds: float) -> None:
        """Waits, and no longer than until a signal comes."""
        until = time.monotonic() + seconds
        while not self._signals and time.monotonic() < until:
            time.sleep(_POLL_S)

"""The launcher of `cluster=local`: the same command as several processes on this machine.

Each is a process group of its own, so that a terminal's Ctrl-C reaches the launcher alone, which passes it on. With
sessions of their own, Linux would schedule them as groups that compete for the cores (sched_autogroup), which took an
eighth of the steps. When one ends badly the others have a moment to end by themselves, which they do when their
switchboard tells them; then they are killed. Should the launcher itself be killed, the kernel ends them with it.
"""

from __future__ import annotations

import json
import math
import os
import secrets
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import closing, suppress

from runner.host.cores import VARIABLE as CORES
from runner.host.cores import available
from runner.host.signals import SIGNALS, TOGETHER_S
from runner.host.terminal import clean
from runner.processes.messages import DeniedError, enter
from runner.processes.place import VARIABLE, Place

FULL_ERROR = "HYDRA_FULL_ERROR"
AS_TYPED = {FULL_ERROR: os.environ.get(FULL_ERROR, "")}  # as the user has it; the command sets it for itself
LAUNCHER_VARIABLE = "RUNNER_LAUNCHER"  # id of the process that started this one, whose end ends it
_GRACE_S = 45.0  # for the others to end by themselves, their last words recorded
_AGAIN_S = 5.0  # likewise, after a second signal
_UNHEARD_S = 10.0  # likewise, where there is no switchboard, and so nothing to be recorded
_STOPPED_S = 17.0  # that one may be stopped, as by SIGSTOP; of one that has come the switchboard knows sooner
_AFTER_FIRST_S = 3.0  # likewise, where process 0, which records, has failed
_POLL_S = 0.05
_LAST_WORDS_S = 2.0
_KILLED = 1
_SIGNALLED = 128
_INTERRUPTED = b"interrupted\n"  # which all of them say, and the launcher once
_OF_SCHEDULERS = ("SLURM_", "OMPI_", "PMI_", "PMIX_", "PRTE_")
_GPUS = "CUDA_VISIBLE_DEVICES"


def run(count: int, environment: dict[str, str], gpus: Sequence[str] = (), device: str = "") -> int:
    """Runs this command as several processes, to their ends.

    Args:
      count: how many.
      environment: variables that each gets besides this process's.
      gpus: numbers of the GPUs that they share out; none: they compute on CPUs.
      device: kind of the mesh's devices.

    Returns:
      The exit code: process 0's; 1 where another one failed alone, or one was killed; 128 + n for signal n.
    """
    place = Place(0, count, "127.0.0.1", free_port(), secrets.token_hex(16), "local", device)
    signals: list[int] = []
    heard = [one for one in SIGNALS if signal.getsignal(one) != signal.SIG_IGN]  # under nohup a hangup is not
    before = {one: signal.signal(one, lambda number, _: signals.append(number)) for one in heard}
    # Process 0 may write to the terminal from its group, whatever `stty tostop` says.
    before[signal.SIGTTOU] = signal.signal(signal.SIGTTOU, signal.SIG_IGN)
    children: list[Child] = []
    try:
        for index in range(count):
            share = gpus[index * len(gpus) // count : (index + 1) * len(gpus) // count]
            own = {_GPUS: ",".join(share)} if gpus else {}
            own[CORES] = str(max(1, available() // count))
            children.append(Child(Place(**{**vars(place), "index": index}), {**environment, **own}))
        return _watch(children, place, signals)
    finally:
        for child in children:
            child.kill()
        for signum, handler in before.items():
            signal.signal(signum, handler)


def _watch(children: Sequence[Child], place: Place, signals: list[int]) -> int:
    passed_on = 0
    first = math.inf
    last = math.inf
    lost = _Loss(place)
    is_over = False
    while not is_over:
        is_over = all(child.code is not None for child in children)  # asked first: how they ended is seen below
        now = time.monotonic()
        for signum in signals[passed_on:]:
            for child in children:
                child.send(signum)
            last = min(last, now + _AGAIN_S) if now - first > TOGETHER_S else last
            first = min(first, now)
        passed_on = len(signals)
        bad = [index for index, child in enumerate(children) if child.code]
        asleep = [index for index, child in enumerate(children) if child.stopped_for(now) > _STOPPED_S]
        if (bad or asleep) and not lost.why:
            lost.begin((bad or asleep)[0], children[bad[0]].code if bad else None)
            children[0].send(signal.SIGCONT)  # it has the end to record, though it may have been stopped
            last = min(last, now + _GRACE_S)
        if lost.why and not lost.is_told and now - lost.since > _UNHEARD_S:
            last = now
        if children[0].code is not None:
            last = min(last, now + (_AFTER_FIRST_S if children[0].code else _UNHEARD_S))
        has_ended = any(child.code is not None for child in children)
        for index, child in enumerate(children):
            if now > last or (has_ended and index and child.is_stopped):
                child.give_up()
        time.sleep(_POLL_S)
    for child in children:
        child.kill()  # what it has left behind, which may hold its pipes open
        child.finish_reading()
    codes = [child.code or 0 for child in children]
    given_up = [child.is_given_up for child in children]
    code = _code(codes, given_up, lost.code, signals)
    with suppress(OSError):
        if code > _SIGNALLED:
            print("interrupted", file=sys.stderr, flush=True)
        elif code and not any(child.has_told for child in children):
            print(f"error: {lost.why}", file=sys.stderr, flush=True)
    return code


def _code(codes: Sequence[int], given_up: Sequence[bool], first_bad: int, signals: Sequence[int]) -> int:
    """Returns the launcher's exit code.

    Args:
      codes: of the processes.
      given_up: of each, whether it was killed for not ending with the others.
      first_bad: exit code of the one that ended badly before the others; 0: none did.
      signals: that came to the launcher.
    """
    if not any(codes):
        return 0
    if signals:
        return _SIGNALLED + signals[0]
    if codes[0] == 0 and all(code == 0 or gone for code, gone in zip(codes, given_up, strict=True)):
        return 0  # process 0 ends well when all have said that they do
    if codes[0] > 0:
        return codes[0]
    return first_bad if first_bad > _SIGNALLED else _KILLED


class _Loss:
    """The first process that ended badly, and the word of it that the launcher sends to the switchboard.

    The switchboard notices those that have come to it. One that ends before that would be waited for.

    Attributes:
      since: when it was seen.
      why: what happened, in words; empty: all is well.
      code: its exit code.
      is_told: whether the switchboard has heard of it.
    """

    def __init__(self, place: Place) -> None:
        self._place = place
        self.since = math.inf
        self.why = ""
        self.code = 0
        self.is_told = False

    def begin(self, index: int, code: int | None) -> None:
        """Notes it, and tells the switchboard.

        Args:
          index: which process.
          code: how it ended, as `Child.code` has it; None: it was stopped, and lives.
        """
        if code is None:
            how = f"was stopped for {_STOPPED_S:.0f} s"
        else:
            how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
        self.since = time.monotonic()
        self.why = f"process {index} {how}"
        self.code = code or _KILLED
        signum = self.code - _SIGNALLED if self.code > _SIGNALLED else None
        word = {"kind": "lost", "index": index, "why": self.why, "signum": signum}
        threading.Thread(target=self._tell, args=(json.dumps(word).encode() + b"\n",), daemon=True).start()

    def _tell(self, line: bytes) -> None:
        while time.monotonic() - self.since < _GRACE_S:
            where = (self._place.host, self._place.port)
            with suppress(OSError), socket.create_connection(where, timeout=1.0) as connection:
                try:
                    enter(connection, self._place.token)
                except DeniedError:
                    return  # somebody else listens there
                connection.sendall(line)
                self.is_told = not connection.recv(1)  # it closes the connection when it has read the line
                return
            time.sleep(_POLL_S)


class Child:
    """A started process; its lines are shown with its number before them, process 0's as they are.

    Attributes:
      has_told: it has said why it ends.
      is_given_up: it did not end with the others, and was killed.
    """

    def __init__(self, place: Place, environment: dict[str, str]) -> None:
        self._prefix = f"[{place.index}] " if place.index else ""
        self.has_told = self.is_given_up = False
        self._stopped_at: float | None = None
        inherited = {key: value for key, value in os.environ.items() if not key.startswith(_OF_SCHEDULERS)}
        inherited.pop(VARIABLE, None)
        self._process = subprocess.Popen(
            [sys.executable, *sys.orig_argv[1:]],
            env={
                **inherited,
                **environment,
                **place.environment(),
                "PYTHONUNBUFFERED": "1",
                **AS_TYPED,
                LAUNCHER_VARIABLE: str(os.getpid()),
            },
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE if place.index or not sys.stdout.isatty() else None,
            stderr=subprocess.PIPE,
            process_group=0,
        )
        pairs = ((self._process.stdout, 1), (self._process.stderr, 2))
        self._readers = [
            threading.Thread(target=self._read, args=(stream, handle), daemon=True)
            for stream, handle in pairs
            if stream is not None
        ]
        for reader in self._readers:
            reader.start()

    @property
    def code(self) -> int | None:
        """How it ended: its exit code, or less than 0 for a signal; None while it runs."""
        return self._process.poll()

    def send(self, signum: int) -> None:
        """Passes a signal on."""
        if self.code is None:
            with suppress(ProcessLookupError):
                self._process.send_signal(signum)

    @property
    def is_stopped(self) -> bool:
        """Whether it was stopped, as by SIGSTOP, so that it can't end by itself."""
        if self.code is not None or not hasattr(os, "waitid"):
            return False
        return os.waitid(os.P_PID, self._process.pid, os.WSTOPPED | os.WNOHANG | os.WNOWAIT) is not None

    def stopped_for(self, now: float) -> float:
        """Returns for how many seconds it has been stopped; asked often."""
        self._stopped_at = (self._stopped_at or now) if self.is_stopped else None
        return now - (self._stopped_at or now)

    def give_up(self) -> None:
        """Ends it, as it does not end with the others."""
        if self.code is None:
            self.is_given_up = True
            self.kill()

    def kill(self) -> None:
        """Ends it, and whatever it started."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.kill()  # it may have left its group
        self._process.wait()

    def finish_reading(self) -> None:
        """Waits for the last of what it said; what it started in sessions of their own may hold the pipes open."""
        for reader in self._readers:
            reader.join(_LAST_WORDS_S)

    def _read(self, stream: object, handle: int) -> None:
        for line in stream:  # type: ignore[attr-defined]
            if handle == 2 and line.startswith(b"error: "):
                self.has_told = True
            if line != _INTERRUPTED:
                with suppress(OSError):
                    os.write(handle, self._prefix.encode() + _cleaned(line))


def _cleaned(line: bytes) -> bytes:
    """Returns a line without what controls a terminal: native code prints past Python's streams, which clean it."""
    # A bar begins its line again; Python's streams have left no other carriage return.
    parts = line.decode(errors="replace").split("\r")
    return "\r".join(clean(part) for part in parts).encode()


def free_port(host: str = "127.0.0.1") -> int:
    """Returns a port that nobody listens at now."""
    with closing(socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)) as one:
        one.bind((host, 0))
        port: int = one.getsockname()[1]
        return port

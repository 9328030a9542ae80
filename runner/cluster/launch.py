"""The launcher of `cluster=local`: the same command as several processes on this machine.

Each is a process group of its own, so that a terminal's Ctrl-C reaches only the launcher, which passes it on. In
sessions of their own, Linux would schedule them as groups that compete for the cores (sched_autogroup), which took an
eighth of the steps. If one fails, the others have some time to end by themselves, as the coordinator tells them to,
and are then killed (`.timeouts`). If the launcher itself is killed, the kernel ends them.
"""

from __future__ import annotations

import math
import os
import secrets
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import IO

from runner.cluster.accelerators import VISIBLE_GPUS
from runner.cluster.place import VARIABLE, Place
from runner.cluster.timeouts import GRACE_S, SECOND_SIGNAL_S, UNHEARD_S
from runner.errors import Interrupted
from runner.host.cores import VARIABLE as CORES
from runner.host.cores import available
from runner.host.signals import SIGNALED, TOGETHER_S, collected, described
from runner.host.terminal import clean

FULL_ERROR = "HYDRA_FULL_ERROR"
# The user's value: the command sets the variable for itself, and its processes must not inherit that.
AS_TYPED = {FULL_ERROR: os.environ.get(FULL_ERROR, "")}
# Id of the process that started this one, and whose end ends it.
LAUNCHER_VARIABLE = "RUNNER_LAUNCHER"
# Between two looks at the processes; short next to anything that they do.
_POLL_S = 0.05
# For the rest of the output of processes that have ended; what they started may keep the pipes open for ever.
_OUTPUT_S = 2.0
# Exit code of a run whose process 0 was killed.
_KILLED = 1
# Printed by every process, but shown by the launcher once.
_INTERRUPTED = b"interrupted\n"
# Variables of schedulers, which would give every process the same place.
_OF_SCHEDULERS = ("SLURM_", "OMPI_", "PMI_", "PMIX_", "PRTE_")


def own_variables() -> dict[str, str]:
    """Returns the variables of a process whose output this one reads, and which ends with this one."""
    # Unbuffered, because Python writes to a pipe or a file in blocks, and lines would come late.
    return {"PYTHONUNBUFFERED": "1", **AS_TYPED, LAUNCHER_VARIABLE: str(os.getpid())}


def kill_group(process: subprocess.Popen[bytes]) -> None:
    """Kills a process that leads a group, and the processes that it has started."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)


def run(
    command: Sequence[str], count: int, environment: Mapping[str, str], gpus: Sequence[str] = (), device: str = ""
) -> int:
    """Runs a command, without its interpreter, as several processes, which divide the GPUs, until all have ended.

    Returns the exit code: process 0's, 1 if that was killed; 128 + n if signal n came to the processes. Raises as
    `_watch` does.
    """
    begun, write_begun = os.pipe()
    os.set_blocking(begun, False)
    place = Place(0, count, "127.0.0.1", free_port(), secrets.token_hex(16), "local", device)
    # Process 0 may write to the terminal from its group, whatever `stty tostop` says.
    before = signal.signal(signal.SIGTTOU, signal.SIG_IGN)
    children: list[Child] = []
    with collected() as received:
        try:
            for index in range(count):
                own = {CORES: str(max(1, available() // count))}
                if gpus:
                    first_gpu = index * len(gpus) // count
                    end = (index + 1) * len(gpus) // count
                    own[VISIBLE_GPUS] = ",".join(gpus[first_gpu:end])
                own_place = replace(place, index=index)
                if index == 0:
                    own_place = replace(place, begun=write_begun)
                children.append(Child(own_place, {**environment, **own}, command))
            return _watch(children, begun, received)
        finally:
            os.close(begun)
            os.close(write_begun)
            for child in children:
                child.kill()
            signal.signal(signal.SIGTTOU, before)


def _watch(children: Sequence[Child], begun: int, signals: list[int]) -> int:
    """Passes signals on and kills what does not end in time, until all processes have ended; returns the exit code.

    Until all have joined, which process 0 says at the descriptor `begun`, no other process hears of a failure. If
    signals, to which this process adds those that it receives, have ended them, it raises Interrupted.
    """
    passed_on = 0
    first_signal_at = math.inf
    # Time at which the processes that are left are killed.
    deadline = math.inf
    # The first failure, in words, and its time.
    why = ""
    failed_at = math.inf
    has_begun = False
    is_over = False
    while not is_over:
        # Asked first, so that the codes of all are seen below before the loop ends.
        is_over = all(child.code is not None for child in children)
        now = time.monotonic()
        for signum in signals[passed_on:]:
            for child in children:
                child.process.send_signal(signum)
            # A terminal and a wrapper may both pass on the user's one Ctrl-C.
            if now - first_signal_at > TOGETHER_S:
                deadline = min(deadline, now + SECOND_SIGNAL_S)
            first_signal_at = min(first_signal_at, now)
        passed_on = len(signals)
        for index, child in enumerate(children):
            if why or not child.code:
                continue
            why = f"process {index}: {described(child.code)}"
            failed_at = now
            # Process 0 has to record the end, but may have been stopped, as by SIGSTOP.
            children[0].process.send_signal(signal.SIGCONT)
            deadline = min(deadline, now + GRACE_S)
        has_begun = has_begun or _was_written(begun)
        if not has_begun and now - failed_at > UNHEARD_S:
            deadline = now
        if children[0].code is not None:
            deadline = min(deadline, now + UNHEARD_S)
        if now >= deadline:
            for child in children:
                if child.code is None:
                    child.kill()
        time.sleep(_POLL_S)
    for child in children:
        # Its own children, too, which may keep its pipes open.
        child.kill()
        for reader in child.readers:
            reader.join(_OUTPUT_S)
    if signals and any(child.code for child in children):
        raise Interrupted(signals[0])
    # Process 0 ends with 0 after all others have told it that they have finished.
    code = children[0].code or 0
    if code < 0:
        code = _KILLED
    with suppress(OSError):
        if code > SIGNALED:
            print("interrupted", file=sys.stderr, flush=True)
        elif code and not any(child.has_printed_error for child in children):
            print(f"error: {why}", file=sys.stderr, flush=True)
    return code


def _was_written(descriptor: int) -> bool:
    with suppress(BlockingIOError):
        return bool(os.read(descriptor, 1))
    return False


class Child:
    """A started process. Its lines are printed after its index in brackets, those of process 0 unchanged."""

    def __init__(self, place: Place, environment: dict[str, str], command: Sequence[str]) -> None:
        self._prefix = f"[{place.index}] " if place.index else ""
        self.has_printed_error = False
        inherited = {key: value for key, value in os.environ.items() if not key.startswith(_OF_SCHEDULERS)}
        inherited.pop(VARIABLE, None)
        # In a process group of its own: Ctrl-C in a terminal then reaches the launcher alone, which passes it on, and
        # `kill` reaches what the process has started.
        self.process = subprocess.Popen(
            [sys.executable, *command],
            env={**inherited, **environment, **place.environment(), **own_variables()},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE if place.index or not sys.stdout.isatty() else None,
            stderr=subprocess.PIPE,
            process_group=0,
            pass_fds=[] if place.begun is None else [place.begun],
        )
        self.readers: list[threading.Thread] = []
        for stream, descriptor in ((self.process.stdout, 1), (self.process.stderr, 2)):
            if stream is not None:
                reader = threading.Thread(target=self._read, args=(stream, descriptor), daemon=True)
                reader.start()
                self.readers.append(reader)

    @property
    def code(self) -> int | None:
        """Its exit code, -n if signal n killed it; None: it runs."""
        return self.process.poll()

    def kill(self) -> None:
        """Kills it and the processes that it has started."""
        kill_group(self.process)
        self.process.wait()

    def _read(self, stream: IO[bytes], descriptor: int) -> None:
        for line in stream:
            if descriptor == 2 and line.startswith(b"error: "):
                self.has_printed_error = True
            if line != _INTERRUPTED:
                with suppress(OSError):
                    os.write(descriptor, self._prefix.encode() + _cleaned(line))


def _cleaned(line: bytes) -> bytes:
    """Returns a line without control sequences: native code bypasses Python's streams, which remove them."""
    # A progress bar starts its line again; Python's streams have left no other carriage return.
    parts = line.decode(errors="replace").split("\r")
    return "\r".join(map(clean, parts)).encode()


def free_port(host: str = "127.0.0.1") -> int:
    """Returns a port of an address that is free now."""
    with socket.create_server((host, 0), family=family(host)) as listening:
        port: int = listening.getsockname()[1]
        return port


def family(host: str) -> socket.AddressFamily:
    """Returns the family of an address's sockets."""
    return socket.AF_INET6 if ":" in host else socket.AF_INET

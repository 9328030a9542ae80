"""What is done to a run of several processes: to which of them, and at which moment of its life."""

from __future__ import annotations

import os
import random
import resource
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

SIGNALS = ("SIGKILL", "SIGSTOP", "SIGTERM", "SIGHUP", "SIGINT")
DISK, ROOM, CONFIG = "disk", "room", "config"  # a disk is full; for a while; another config
KINDS = (*SIGNALS, DISK, ROOM, CONFIG)
_WEIGHTS = (9, 6, 5, 4, 4, 3, 2, 2)
MOMENTS = ("start", "compile", "step", "save", "evaluation", "end")
LAUNCHER = -1
_FILE_BYTES = 4096  # more than a rank's logs and records take, and less than its shards
_ROOM_S = (0.2, 1.0)
_STOPPED_S = 3.0
_START_S = 3.0
_POLL_S = 0.001
_PATIENCE_S = 60.0  # for a moment to come


@dataclass(frozen=True)
class Fault:
    """What is done.

    Attributes:
      kind: one of `KINDS`.
      rank: of the process that it is done to; -1: the launcher.
      moment: one of `MOMENTS`.
      step: of the checkpoint that the moment is at, where it is at one.
      delay: seconds after the moment.
    """

    kind: str
    rank: int
    moment: str
    step: int
    delay: float

    def __str__(self) -> str:
        """Returns it in words."""
        who = "the launcher" if self.rank == LAUNCHER else f"process {self.rank}"
        at = f" {self.step}" if self.moment in ("step", "save", "evaluation") else ""
        return f"{self.kind} of {who} at {self.moment}{at} + {self.delay:.3f} s"

    @property
    def signum(self) -> int | None:
        """The signal that asks for an end in good order; None: it is no such fault."""
        return int(signal.Signals[self.kind]) if self.kind in ("SIGTERM", "SIGHUP", "SIGINT") else None


def drawn(draw: random.Random, processes: int, every: int, per_epoch: int, steps: int, only: str = "") -> Fault:
    """Draws a fault.

    Args:
      draw: decides.
      processes: of the run, without its launcher.
      every: steps between checkpoints.
      per_epoch: steps of an epoch.
      steps: of the run.
      only: the kind, where it is not drawn.
    """
    kind = only or draw.choices(KINDS, _WEIGHTS)[0]
    if kind == CONFIG:
        return Fault(kind, draw.randrange(processes), "start", 0, 0.0)
    saves = [step for step in range(every, steps, every) if step % per_epoch]
    if kind in (DISK, ROOM):  # process 0's own files are what the campaign `storage` tries
        return Fault(
            kind, draw.randrange(1, processes), "step", draw.choice(saves[:-2]), round(draw.uniform(0, 0.3), 3)
        )
    rank = draw.choice([LAUNCHER, *range(processes)])
    moment = draw.choice(MOMENTS)
    longest = {"start": _START_S, "compile": 2.0, "step": 0.3, "save": 0.02, "evaluation": 0.2, "end": 1.0}[moment]
    step = draw.choice(saves)
    if moment == "evaluation":  # comes between the last save of an epoch and the one at its end
        step = draw.choice([step for step in saves if step // per_epoch < (step + every) // per_epoch])
    return Fault(kind, rank, moment, step, round(draw.uniform(0, longest), 3))


@dataclass(frozen=True)
class Process:
    """A process of a run.

    Attributes:
      pid: its id.
      parent: its parent's.
      born: when, in the kernel's ticks.
    """

    pid: int
    parent: int
    born: int


def there(folder: Path) -> list[Process]:
    """Returns the processes that work in a folder, the eldest first: programs keep the folder they are started in."""
    found = []
    for path in Path("/proc").iterdir():
        if not path.name.isdigit() or int(path.name) == os.getpid():
            continue
        with suppress(OSError):
            if (path / "cwd").readlink() == folder:
                fields = (path / "stat").read_text().rpartition(")")[2].split()
                if fields[0] != "Z":
                    found.append(Process(int(path.name), int(fields[1]), int(fields[19])))
    return sorted(found, key=lambda one: (one.born, one.pid))


def end(folder: Path) -> str:
    """Kills what works in a folder; returns in words what that was."""
    told = []
    for one in there(folder):
        with suppress(OSError):
            text = Path(f"/proc/{one.pid}/stat").read_text().split()
            told.append(f"{one.pid} of {one.parent}, {text[1]} {text[2]}")
            os.kill(one.pid, signal.SIGKILL)
    return ", ".join(told)


def until(holds: Callable[[], bool], is_over: Callable[[], bool]) -> bool:
    """Waits for something; returns whether it came before the run was over."""
    deadline = time.monotonic() + _PATIENCE_S
    while not holds():
        if is_over() or time.monotonic() > deadline:
            return False
        time.sleep(_POLL_S)
    return True


def await_moment(fault: Fault, folder: Path, run: Path, said: Path, is_over: Callable[[], bool]) -> bool:
    """Waits for a fault's moment; returns whether it came before the run was over.

    Args:
      fault: whose moment.
      folder: holds `checkpoints`.
      run: the run's own folder.
      said: file of what the run prints.
      is_over: tells whether the run has ended.
    """

    def reached(begins: str) -> bool:  # this step, or, where this process had to wait for a core, one after it
        steps = [path.name.removeprefix(begins)[:9] for path in folder.glob(f"checkpoints/*/{begins}*")]
        return any(step.isdigit() and int(step) >= fault.step for step in steps)

    signs = {
        "start": lambda: True,
        "compile": lambda: (run / "config.yaml").exists(),
        "step": lambda: reached("step-"),
        "evaluation": lambda: reached("step-"),
        "save": lambda: reached(".unfinished-"),
        "end": lambda: "\u2502 steps".encode() in said.read_bytes(),  # the table of results
    }
    came = until(signs[fault.moment], is_over)
    time.sleep(fault.delay if came else 0.0)
    return came and not is_over()


def inflict(fault: Fault, pid: int, draw: random.Random) -> bool:
    """Does it to a process; returns whether that was still there.

    Args:
      fault: what.
      pid: of the process.
      draw: decides for how long where it is for a while.
    """
    try:
        if fault.kind not in (DISK, ROOM):
            os.kill(pid, signal.Signals[fault.kind])
            if fault.kind == "SIGSTOP" and fault.rank == LAUNCHER:  # as Ctrl-Z and `fg`: nothing is wrong
                time.sleep(draw.uniform(0.5, _STOPPED_S))
                os.kill(pid, signal.SIGCONT)
            return True
        before = resource.prlimit(pid, resource.RLIMIT_FSIZE)
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (_FILE_BYTES, before[1]))
        if fault.kind == ROOM:
            time.sleep(draw.uniform(*_ROOM_S))
            resource.prlimit(pid, resource.RLIMIT_FSIZE, before)
    except ProcessLookupError:
        return False
    return True

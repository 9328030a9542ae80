"""Processes of a test's runs, found by the folder that they work in."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path


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

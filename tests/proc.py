"""What `/proc` tells of processes, also where it shows the numbers of an outer namespace (`unshare --pid` alone)."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import pytest

from runner.host.proc import is_of_own_namespace

# In a process namespace that has no /proc of its own, the runner takes no process that it can't see for ended.
needs_own_proc = pytest.mark.skipif(not is_of_own_namespace(), reason="/proc shows another process namespace")


def _inner(place: Path) -> int:
    """Returns the number of a process in its own namespace."""
    for line in (place / "status").read_text().splitlines():
        if line.startswith("NSpid:"):
            return int(line.split()[-1])
    return int(place.name)


def place_of(pid: int) -> Path | None:
    """Returns the folder of a process in `/proc`; None if there is none."""
    if is_of_own_namespace():
        place = Path(f"/proc/{pid}")
        return place if place.exists() else None
    own = Path("/proc/self/ns/pid").readlink()
    for place in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if (place / "ns/pid").readlink() == own and _inner(place) == pid:
                return place
    return None


def is_there(pid: int) -> bool:
    """Returns whether a process lives; one that only waits to be asked how it ended does not."""
    place = place_of(pid)
    try:
        return place is not None and (place / "stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def children_of(pid: int) -> list[int]:
    """Returns the processes that a process has started, of all its threads."""
    place = place_of(pid)
    found: set[int] = set()
    for thread in (place / "task").iterdir() if place is not None else ():
        with suppress(OSError):
            found |= {int(number) for number in (thread / "children").read_text().split()}
    if is_of_own_namespace():
        return sorted(found)
    inner: list[int] = []
    for number in found:
        with suppress(OSError):  # it has ended meanwhile
            inner.append(_inner(Path(f"/proc/{number}")))
    return sorted(inner)

"""Which process runs a run, and whether it is still there."""

from __future__ import annotations

import os
import platform
import sys
import uuid
from collections.abc import Mapping
from pathlib import Path

HOST = "runner.host"
PID = "runner.pid"
BOOT = "runner.boot"
_FIRST_NAMESPACE = "pid:[4026531836]"  # the kernel's fixed number of the one outside all containers
_ZOMBIE = "ended"  # and not yet reaped by its parent


def identity() -> dict[str, str]:
    """Returns the tags by which another process can tell whether this one is still there.

    `runner.boot` is `<boot of the machine>/<process namespace>/<start of the process>`; what the system does not
    tell is empty.
    """
    pid = os.getpid()
    boot = f"{_boot()}/{_namespace()}/{_started(pid)}"
    return {HOST: platform.node(), PID: str(pid), BOOT: boot}


def is_gone(tags: Mapping[str, str]) -> bool:
    """Returns whether the process of these tags has certainly ended.

    A process of another machine or container cannot be seen, so it counts as there.

    Args:
      tags: of a run, as `identity` made them.
    """
    pid = tags.get(PID, "")
    parts = tags.get(BOOT, "").split("/")
    if tags.get(HOST) != platform.node() or not pid.isdigit() or len(parts) != 3 or not parts[0]:
        return False
    boot, namespace, started = parts
    if boot != _boot():
        return namespace == _namespace() == _FIRST_NAMESPACE  # the machine itself was started again
    if namespace != _namespace() or sys.platform == "win32":
        return False
    if not _answers(int(pid)):
        return True
    now = _started(int(pid))
    return now == _ZOMBIE or bool(started and now and now != started)  # the number may be another process's by now


def _answers(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True


def _boot() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return f"{uuid.getnode():x}"


def _namespace() -> str:
    try:
        return str(Path("/proc/self/ns/pid").readlink())
    except OSError:
        return ""


def _started(pid: int) -> str:
    """Returns when a process started, in ticks since boot; empty where that cannot be seen."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    fields = text.rpartition(")")[2].split()  # the name before it may hold spaces
    return _ZOMBIE if fields[0] in "ZX" else fields[19]

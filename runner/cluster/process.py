"""Identity of a run's process, by which others see whether it still runs."""

from __future__ import annotations

import hashlib
import os
import platform
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

# MLflow's UI lists no tag whose name begins with `mlflow.`: these are for programs only.
HOST = "mlflow.runner.host"
PID = "mlflow.runner.pid"
# Where and when it started: `<boot id>/<process namespace>/<ticks since boot>`, each empty if it can't be seen.
BOOT = "mlflow.runner.boot"
MACHINE = "mlflow.runner.machine"
# The Linux kernel's fixed inode number of the namespace outside all containers.
_INITIAL_PID_NAMESPACE = "pid:[4026531836]"
_MACHINE_ID = Path("/etc/machine-id")
# In place of the start time of a process that has ended and whose parent has not yet collected its status.
_ZOMBIE = "ended"
# Fields of /proc/<pid>/stat after the command's name: the state, and the start time in ticks since boot.
_STATE_FIELD = 0
_START_FIELD = 19


def identity() -> dict[str, str]:
    """Returns the tags by which another process sees whether this one still runs."""
    namespace = _link("/proc/self/ns/pid")
    boot = f"{file_text(Path('/proc/sys/kernel/random/boot_id'))}/{namespace}/{_start_time(os.getpid())}"
    return {HOST: platform.node(), PID: str(os.getpid()), BOOT: boot, MACHINE: _machine_id()}


def is_gone(tags: Mapping[str, str]) -> bool:
    """Returns whether the process that `identity` made these tags for has certainly ended.

    A process id is looked up only in the boot and the process namespace that it was recorded in. A process of another
    boot has ended if the machine has this host name and machine id: containers share either, so both processes must be
    outside of them. A process of another machine or container can't be seen, so it counts as running.
    """
    own = identity()
    pid = tags.get(PID, "")
    recorded = tags.get(BOOT, "").split("/")
    if tags.get(HOST) != own[HOST] or not pid.isdigit() or len(recorded) != 3 or not recorded[0]:
        return False
    boot, namespace, started = recorded
    own_boot, own_namespace, _ = own[BOOT].split("/")
    if boot != own_boot:
        is_outside_containers = namespace == own_namespace == _INITIAL_PID_NAMESPACE
        return is_outside_containers and own[MACHINE] != "" and tags.get(MACHINE) == own[MACHINE]
    if namespace != own_namespace:
        return False
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return True
    except OSError:
        pass  # another user's process
    now = _start_time(int(pid))
    # The id may belong to another process by now, which started at another time.
    return now == _ZOMBIE or bool(started and now and now != started)


def _machine_id() -> str:
    """Returns a digest of the machine's id, which is not meant to be published; empty if it has none."""
    text = file_text(_MACHINE_ID)
    # An image that gets its id at its first boot has an empty file, or this text.
    if text in ("", "uninitialized"):
        return ""
    return hashlib.sha256(f"runner:{text}".encode()).hexdigest()[:16]


def _start_time(pid: int) -> str:
    """Returns when a process started, in ticks since boot; empty if that can't be seen."""
    # The name of the command is in parentheses and may contain spaces.
    fields = file_text(Path(f"/proc/{pid}/stat")).rpartition(")")[2].split()
    # After `unshare --pid` without a new `/proc`, this lists other processes by these ids.
    if not fields or _link("/proc/self") != str(os.getpid()):
        return ""
    return _ZOMBIE if fields[_STATE_FIELD] in "ZX" else fields[_START_FIELD]


def file_text(path: Path) -> str:
    """Returns a file's text; empty if it can't be read."""
    with suppress(OSError):
        return path.read_text(encoding="utf-8", errors="replace").strip()
    return ""


def _link(path: str) -> str:
    with suppress(OSError):
        return str(Path(path).readlink())
    return ""

"""Identity of a run's process, by which others see whether it still runs."""

from __future__ import annotations

import functools
import hashlib
import os
import platform
import sys
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from runner.host import proc

HOST = "runner.host"
PID = "runner.pid"
BOOT = "runner.boot"
MACHINE = "runner.machine"
# The Linux kernel's fixed inode number of the namespace outside all containers.
_INITIAL_PID_NAMESPACE = "pid:[4026531836]"
_MACHINE_ID = Path("/etc/machine-id")
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
# In place of the start time of a process that has ended and whose parent has not yet collected its status.
_ZOMBIE = "ended"
# Fields of /proc/<pid>/stat after the command's name: the state, and the start time in ticks since boot.
_STATE_FIELD = 0
_START_FIELD = 19


@dataclass(frozen=True)
class Boot:
    """Where and when a process started. What the system does not reveal is empty.

    Attributes:
      boot_id: of the system's present start.
      namespace: of processes, in which the process id is unique.
      start_time: of the process, in ticks since boot.
    """

    boot_id: str = ""
    namespace: str = ""
    start_time: str = ""

    @classmethod
    def from_tag(cls, tag: str) -> Boot:
        """Returns what `tag` made; empty if the tag has another form."""
        parts = tag.split("/")
        return cls(*parts) if len(parts) == 3 else cls()

    @property
    def tag(self) -> str:
        """The value of `runner.boot`: `<boot id>/<namespace>/<start time>`."""
        return f"{self.boot_id}/{self.namespace}/{self.start_time}"


def identity() -> dict[str, str]:
    """Returns the tags by which another process sees whether this one still runs; see `Boot`."""
    pid = os.getpid()
    boot = Boot(_boot_id(), _namespace(), _start_time(pid))
    return {HOST: platform.node(), PID: str(pid), BOOT: boot.tag, MACHINE: _machine_id()}


def is_gone(tags: Mapping[str, str]) -> bool:
    """Returns whether the process of these tags has certainly ended.

    A process id is looked up only in the boot and the process namespace that it was recorded in. A process of another
    boot has ended if the machine has this host name and machine id: containers share either, so both processes must be
    outside of them. A process of another machine or container can't be seen, so it counts as running.

    Args:
      tags: of a run, as returned by `identity`.
    """
    pid = tags.get(PID, "")
    boot = Boot.from_tag(tags.get(BOOT, ""))
    if tags.get(HOST) != platform.node() or not pid.isdigit() or not boot.boot_id:
        return False
    namespace = _namespace()
    if boot.boot_id != _boot_id():
        is_outside_containers = boot.namespace == namespace == _INITIAL_PID_NAMESPACE
        machine = _machine_id()
        return is_outside_containers and bool(machine) and tags.get(MACHINE) == machine
    if boot.namespace != namespace:
        return False
    if not _exists(int(pid)):
        return True
    current_start = _start_time(int(pid))
    if current_start == _ZOMBIE:
        return True
    # The id may belong to another process by now, which started at another time.
    return bool(boot.start_time and current_start and current_start != boot.start_time)


@functools.cache
def _machine_id() -> str:
    """Returns a digest of the machine's id, which is not meant to be published; empty if it has none."""
    try:
        text = _MACHINE_ID.read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        return ""
    # An image that gets its id at its first boot has an empty file, or this text.
    if text in ("", "uninitialized"):
        return ""
    return hashlib.sha256(f"runner:{text}".encode()).hexdigest()[:16]


def _exists(pid: int) -> bool:
    """Returns whether there is a process of this id, as far as can be seen."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        # Another user's process.
        return True
    return True


def _boot_id() -> str:
    try:
        return _BOOT_ID.read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        # Other systems have no such id, but the address of a network device. On Linux without /proc it would be a
        # container's address, which every other host gives to its containers too.
        if sys.platform == "linux":
            return ""
        return f"{uuid.getnode():x}"


def _namespace() -> str:
    """Returns the process namespace; empty if the system does not reveal it."""
    try:
        return str(Path("/proc/self/ns/pid").readlink())
    except OSError:
        return ""


def _start_time(pid: int) -> str:
    """Returns when a process started, in ticks since boot.

    It is empty if that can't be seen.
    """
    # Else /proc would show another process under this id.
    if not proc.is_of_own_namespace():
        return ""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    # The name of the command is in parentheses and may contain spaces.
    fields = text.rpartition(")")[2].split()
    if fields[_STATE_FIELD] in "ZX":
        return _ZOMBIE
    return fields[_START_FIELD]

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
# The Linux kernel's fixed inode numbers of the namespaces outside all containers.
_INITIAL_PID_NAMESPACE = "pid:[4026531836]"
_INITIAL_TIME_NAMESPACE = "time:[4026531834]"
_MACHINE_ID = Path("/etc/machine-id")
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_NETWORK = Path("/sys/class/net")
# QEMU gives the second address to every virtual machine that is started without one of its own.
_SHARED_ADDRESSES = ("00:00:00:00:00:00", "52:54:00:12:34:56")
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


@dataclass(frozen=True)
class Machine:
    """A machine and its present start. What the system does not reveal is empty.

    The ids are digests, because they are not meant to be published.

    Attributes:
      machine_id: digest of the machine's id.
      addresses: digests of the addresses of its network devices.
      boot_time: when it was started, in seconds since 1970.
    """

    machine_id: str = ""
    addresses: frozenset[str] = frozenset()
    boot_time: str = ""

    @classmethod
    def from_tag(cls, tag: str) -> Machine:
        """Returns what `tag` made; empty if the tag has another form."""
        parts = tag.split("/")
        if len(parts) != 3:
            return cls()
        machine_id, addresses, boot_time = parts
        return cls(machine_id, frozenset(filter(None, addresses.split(","))), boot_time)

    @property
    def tag(self) -> str:
        """The value of `runner.machine`: `<machine id>/<addresses>/<boot time>`."""
        return f"{self.machine_id}/{','.join(sorted(self.addresses))}/{self.boot_time}"

    def is_earlier_boot_of(self, other: Machine) -> bool:
        """Returns whether this is certainly the same machine as another one, started before.

        Clones of a disk image share the machine id, so the two must share the address of a network device too.
        """
        is_same_id = bool(self.machine_id) and self.machine_id == other.machine_id
        if not is_same_id or not self.addresses & other.addresses:
            return False
        if not (self.boot_time.isdigit() and other.boot_time.isdigit()):
            return False
        return int(self.boot_time) < int(other.boot_time)

    def is_certainly_not(self, other: Machine) -> bool:
        """Returns whether the two have different, known machine ids."""
        are_known = bool(self.machine_id and other.machine_id)
        return are_known and self.machine_id != other.machine_id


def identity() -> dict[str, str]:
    """Returns the tags by which another process sees whether this one still runs; see `Boot` and `Machine`."""
    pid = os.getpid()
    boot = Boot(_boot_id(), _namespace(), _start_time(pid))
    return {HOST: platform.node(), PID: str(pid), BOOT: boot.tag, MACHINE: _machine().tag}


def is_gone(tags: Mapping[str, str]) -> bool:
    """Returns whether the process of these tags has certainly ended.

    A process id is looked up only in the boot and the process namespace that it was recorded in. A process of another
    boot has ended if that was an earlier boot of this very machine. Host names prove nothing: machines, containers and
    clones share them. A process of another machine or container can't be seen, so it counts as running.

    Args:
      tags: of a run, as returned by `identity`.
    """
    pid = tags.get(PID, "")
    boot = Boot.from_tag(tags.get(BOOT, ""))
    if tags.get(HOST) != platform.node() or not pid.isdigit() or not boot.boot_id:
        return False
    machine = Machine.from_tag(tags.get(MACHINE, ""))
    namespace = _namespace()
    if boot.boot_id != _boot_id():
        # A container's machine id comes from its image, so a run of another boot may be one of another machine.
        is_outside_containers = boot.namespace == namespace == _INITIAL_PID_NAMESPACE
        return is_outside_containers and machine.is_earlier_boot_of(_machine())
    if boot.namespace != namespace or machine.is_certainly_not(_machine()):
        return False
    if not _exists(int(pid)):
        return True
    current_start = _start_time(int(pid))
    if current_start == _ZOMBIE:
        return True
    # The id may belong to another process by now, which started at another time.
    return bool(boot.start_time and current_start and current_start != boot.start_time)


@functools.cache
def _machine() -> Machine:
    return Machine(_machine_id(), frozenset(map(_digest, _addresses())), _boot_time())


def _machine_id() -> str:
    try:
        text = _MACHINE_ID.read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        return ""
    # An image that gets its id at its first boot has an empty file, or this text.
    if text in ("", "uninitialized"):
        return ""
    return _digest(text)


def _addresses() -> list[str]:
    """Returns the addresses of the network devices.

    Those of containers have no device and are not unique.
    """
    try:
        interfaces = sorted(_NETWORK.iterdir())
    except OSError:
        return []
    addresses = []
    for interface in interfaces:
        try:
            address = (interface / "address").read_text(encoding="ascii").strip()
        except (OSError, ValueError):
            continue
        if (interface / "device").exists() and address and address not in _SHARED_ADDRESSES:
            addresses.append(address)
    return addresses


def _boot_time() -> str:
    """Returns when the machine was started, in seconds since 1970.

    It is empty if the system does not reveal it.
    """
    try:
        lines = Path("/proc/stat").read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return ""
    for line in lines:
        if line.startswith("btime "):
            return line.split()[1]
    return ""


def _digest(text: str) -> str:
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
    """Returns the process namespace.

    The time namespace is added if that shifts the start time of a process.
    """
    folder = Path("/proc/self/ns")
    try:
        namespace = str((folder / "pid").readlink())
    except OSError:
        return ""
    try:
        time_namespace = str((folder / "time").readlink())
    except OSError:
        # Kernels before 5.6 have no time namespaces.
        return namespace
    if time_namespace == _INITIAL_TIME_NAMESPACE:
        return namespace
    return f"{namespace}+{time_namespace}"


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

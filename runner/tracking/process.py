"""Identity of a run's process, by which others see whether it still runs."""

from __future__ import annotations

import functools
import hashlib
import os
import platform
import sys
import uuid
from collections.abc import Mapping
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


def identity() -> dict[str, str]:
    """Returns the tags by which another process sees whether this one still runs.

    `runner.boot` is `<boot id>/<process namespace>/<start of the process>`, and `runner.machine` is
    `<digest of the machine id>/<digests of its network addresses>/<time of its boot>`. What the system does not reveal
    is empty.
    """
    pid = os.getpid()
    boot = f"{_boot_id()}/{_namespace()}/{_start_time(pid)}"
    return {HOST: platform.node(), PID: str(pid), BOOT: boot, MACHINE: _machine()}


def is_gone(tags: Mapping[str, str]) -> bool:
    """Returns whether the process of these tags has certainly ended.

    A process id is looked up only in the boot and the process namespace that it was recorded in. A process of another
    boot has ended if that was an earlier boot of this very machine. Host names prove nothing: machines, containers and
    clones share them. A process of another machine or container can't be seen, so it counts as running.

    Args:
      tags: of a run, as returned by `identity`.
    """
    pid = tags.get(PID, "")
    parts = tags.get(BOOT, "").split("/")
    if tags.get(HOST) != platform.node() or not pid.isdigit() or len(parts) != 3 or not parts[0]:
        return False
    boot, namespace, start_time = parts
    recorded_machine = tags.get(MACHINE, "")
    this_machine = _machine()
    if boot != _boot_id():
        # A container's machine id comes from its image, so a run of another boot may be one of another machine.
        is_outside_containers = namespace == _namespace() == _INITIAL_PID_NAMESPACE
        return is_outside_containers and _is_earlier_boot(recorded_machine, this_machine)
    if namespace != _namespace() or sys.platform == "win32" or _is_other_machine(recorded_machine, this_machine):
        return False
    if not _exists(int(pid)):
        return True
    current_start = _start_time(int(pid))
    if current_start == _ZOMBIE:
        return True
    # The id may belong to another process by now, which started at another time.
    return bool(start_time and current_start and current_start != start_time)


def _is_earlier_boot(recorded: str, current: str) -> bool:
    """Returns whether a value of `MACHINE` is an earlier boot of the same machine.

    Clones of a disk image share the machine id, so the two must share the address of a network device too.
    """
    machine, addresses, boot_time = _split(recorded)
    current_machine, current_addresses, current_boot_time = _split(current)
    if not machine or machine != current_machine or not addresses & current_addresses:
        return False
    return boot_time.isdigit() and current_boot_time.isdigit() and int(boot_time) < int(current_boot_time)


def _is_other_machine(recorded: str, current: str) -> bool:
    """Returns whether two values of `MACHINE` have different, known machine ids."""
    machine = _split(recorded)[0]
    current_machine = _split(current)[0]
    return bool(machine and current_machine) and machine != current_machine


def _split(machine: str) -> tuple[str, set[str], str]:
    """Returns the machine id, network addresses and boot time of a `MACHINE` value."""
    parts = machine.split("/")
    if len(parts) != 3:
        return "", set(), ""
    machine_id, addresses, boot_time = parts
    return machine_id, set(filter(None, addresses.split(","))), boot_time


@functools.cache
def _machine() -> str:
    """Returns the value of `MACHINE`.

    It has digests, because the ids themselves are not meant to be published.
    """
    addresses = ",".join(sorted(map(_digest, _addresses())))
    return f"{_machine_id()}/{addresses}/{_boot_time()}"


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

"""Which process runs a run, and whether it is still there."""

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
# The kernel's fixed numbers of the namespaces outside all containers.
_FIRST_NAMESPACE = "pid:[4026531836]"
_FIRST_TIME = "time:[4026531834]"
_MACHINE_ID = Path("/etc/machine-id")
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_NETWORK = Path("/sys/class/net")
# QEMU gives this address to every virtual machine that is started without one of its own.
_SHARED_ADDRESSES = ("00:00:00:00:00:00", "52:54:00:12:34:56")
_ZOMBIE = "ended"  # and not yet reaped by its parent


def identity() -> dict[str, str]:
    """Returns the tags by which another process can tell whether this one is still there.

    `runner.boot` is `<boot of the machine>/<process namespace>/<start of the process>`, and `runner.machine` is
    `<digest of the machine's id>/<digests of its network addresses>/<time of its boot>`. What the system does not say
    is empty.
    """
    pid = os.getpid()
    boot = f"{_boot()}/{_namespace()}/{_started(pid)}"
    return {HOST: platform.node(), PID: str(pid), BOOT: boot, MACHINE: _machine()}


def is_gone(tags: Mapping[str, str]) -> bool:
    """Returns whether the process of these tags has certainly ended.

    Its number is looked up only in the boot and the process namespace that it was in. Of another boot it has ended if
    that was an earlier one of this very machine. A name is no proof: machines, containers and clones share names. A
    process of another machine or container cannot be seen, so it counts as there.

    Args:
      tags: of a run, as `identity` made them.
    """
    pid = tags.get(PID, "")
    parts = tags.get(BOOT, "").split("/")
    if tags.get(HOST) != platform.node() or not pid.isdigit() or len(parts) != 3 or not parts[0]:
        return False
    boot, namespace, started = parts
    recorded = tags.get(MACHINE, "")
    here = _machine()
    if boot != _boot():
        is_outside = namespace == _namespace() == _FIRST_NAMESPACE
        return is_outside and _is_earlier_boot(recorded, here)
    if namespace != _namespace() or sys.platform == "win32" or _differ(recorded, here):
        return False
    if not _answers(int(pid)):
        return True
    now = _started(int(pid))
    return now == _ZOMBIE or bool(started and now and now != started)  # the number may be another process's by now


def _is_earlier_boot(recorded: str, here: str) -> bool:
    """Returns whether both describe one machine, and the recorded boot is older than this one.

    Clones of a disk image share the machine's id, so it must share an address of a network device too.
    """
    machine, addresses, booted = _split(recorded)
    own_machine, own_addresses, own_booted = _split(here)
    if not machine or machine != own_machine or not addresses & own_addresses:
        return False
    return booted.isdigit() and own_booted.isdigit() and int(booted) < int(own_booted)


def _differ(recorded: str, here: str) -> bool:
    """Returns whether two machines' ids, both of which are known, differ."""
    machine = _split(recorded)[0]
    own_machine = _split(here)[0]
    return bool(machine and own_machine) and machine != own_machine


def _split(machine: str) -> tuple[str, set[str], str]:
    parts = machine.split("/")
    if len(parts) != 3:
        return "", set(), ""
    return parts[0], {address for address in parts[1].split(",") if address}, parts[2]


@functools.cache
def _machine() -> str:
    """Returns the value of `MACHINE`: digests, since the id itself is not meant to be published."""
    addresses = ",".join(sorted(_digest(address) for address in _addresses()))
    return f"{_machine_id()}/{addresses}/{_booted()}"


def _machine_id() -> str:
    try:
        text = _MACHINE_ID.read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        return ""
    # An image that gets its id at its first boot has an empty file, or this text.
    return "" if text in ("", "uninitialized") else _digest(text)


def _addresses() -> list[str]:
    """Returns the addresses of the network devices; those of containers have no device and are not unique."""
    found = []
    try:
        places = sorted(_NETWORK.iterdir())
    except OSError:
        return []
    for place in places:
        try:
            address = (place / "address").read_text(encoding="ascii").strip()
        except (OSError, ValueError):
            continue
        if (place / "device").exists() and address and address not in _SHARED_ADDRESSES:
            found.append(address)
    return found


def _booted() -> str:
    """Returns when the machine was started, in seconds since 1970; empty where that cannot be seen."""
    try:
        lines = Path("/proc/stat").read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return ""
    return next((line.split()[1] for line in lines if line.startswith("btime ")), "")


def _digest(text: str) -> str:
    return hashlib.sha256(f"runner:{text}".encode()).hexdigest()[:16]


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
        return _BOOT_ID.read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        # On Linux the address would be a container's, which every other host gives to a container too.
        return "" if sys.platform == "linux" else f"{uuid.getnode():x}"


def _namespace() -> str:
    """Returns the process namespace, with a time namespace that shifts the start of a process."""
    place = Path("/proc/self/ns")
    try:
        namespace = str((place / "pid").readlink())
    except OSError:
        return ""
    try:
        time = str((place / "time").readlink())
    except OSError:  # kernels before 5.6 have none
        time = _FIRST_TIME
    return namespace if time == _FIRST_TIME else f"{namespace}+{time}"


def _started(pid: int) -> str:
    """Returns when a process started, in ticks since boot; empty where that cannot be seen."""
    if not proc.is_of_own_namespace():  # the number would be that of another process there
        return ""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    fields = text.rpartition(")")[2].split()  # the name before it may hold spaces
    return _ZOMBIE if fields[0] in "ZX" else fields[19]

"""Two machines on one: network namespaces, joined by a cable that can be pulled."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests import forks

INTERFACE = "cable"
ADDRESSES = ("10.201.7.1", "10.201.7.2")
PORT = 29400


@dataclass(frozen=True)
class Machines:
    """Two network namespaces, of which only their cable leads out.

    Attributes:
      names: of the namespaces.
    """

    names: tuple[str, str]

    def link(self, state: str) -> None:
        """Pulls the cable at the second machine (`down`), or puts it in again (`up`)."""
        _ip("-n", self.names[1], "link", "set", INTERFACE, state)

    def start(
        self, index: int, arguments: Sequence[str], folder: Path, environment: Mapping[str, str], library: str
    ) -> subprocess.Popen[Any]:
        """Starts the training command on a machine; its outputs go to files in the folder."""
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / f"out{index}").open("wb") as out, (folder / f"err{index}").open("wb") as err:
            return forks.Popen(
                [sys.executable, "-m", "tests.processes.in_network", self.names[index], "runner", *arguments],
                library=library,
                cwd=folder,
                env=dict(environment),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
            )


@contextmanager
def two_machines(name: str) -> Iterator[Machines]:
    """Makes two machines, and removes them; skips the test where that may not be.

    Args:
      name: of a few letters, its own in this process.
    """
    if shutil.which("ip") is None:
        pytest.skip("two machines need the command ip, of iproute2")
    first, second = names = (f"r{os.getpid()}{name}0", f"r{os.getpid()}{name}1")
    made: list[str] = []
    try:
        try:
            for one in names:
                _ip("netns", "add", one)
                made.append(one)
            _ip("link", "add", INTERFACE, "netns", first, "type", "veth", "peer", "name", INTERFACE, "netns", second)
            for one, address in zip(names, ADDRESSES, strict=True):
                _ip("-n", one, "address", "add", f"{address}/24", "dev", INTERFACE)
                for interface in ("lo", INTERFACE):
                    _ip("-n", one, "link", "set", interface, "up")
        except subprocess.CalledProcessError as error:
            pytest.skip(f"two machines need network namespaces, which can't be made here: {error.stderr.strip()}")
        yield Machines(names)
    finally:
        for one in made:
            _ip("netns", "del", one)


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True, timeout=20)


def listening(pid: int) -> set[str]:
    """Returns the IPv4 addresses at which sockets of a process listen."""
    own = {str(one.readlink()) for one in Path(f"/proc/{pid}/fd").iterdir()}
    found = set()
    for line in Path(f"/proc/{pid}/net/tcp").read_text().splitlines()[1:]:
        local, _, state, *rest = line.split()[1:]
        if state == "0A" and f"socket:[{rest[5]}]" in own:
            found.add(".".join(str(byte) for byte in reversed(bytes.fromhex(local.partition(":")[0]))))
    return found

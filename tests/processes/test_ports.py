"""What a run of two processes listens on, from `/proc`: loopback alone."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from tests import forks
from tests.proc import place_of
from tests.processes import working_in

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="sockets are found in /proc")

_LONGEST_S = 240.0  # of a start on a machine that others share
_POLL_S = 0.2
_LISTENS = "0A"  # state of a socket in /proc/net/tcp
_LOOPBACK = {"0100007F", "0000000000000000FFFF00000100007F", "00000000000000000000000001000000"}


def listening(pid: int) -> set[str]:
    """Returns the addresses, as `/proc/net/tcp` writes them, at which sockets of a process listen."""
    own = set()
    place = place_of(pid)
    if place is None:
        return set()
    try:
        for handle in (place / "fd").iterdir():
            with suppress(OSError):  # the process has closed it meanwhile
                own.add(str(handle.readlink()))
        lines = (place / "net/tcp").read_text().splitlines()[1:]
        six = place / "net/tcp6"
        if six.exists():
            lines += six.read_text().splitlines()[1:]
    except OSError:  # it has ended
        return set()
    addresses = set()
    for line in lines:
        fields = line.split()
        if fields[3] == _LISTENS and f"socket:[{fields[9]}]" in own:
            addresses.add(fields[1].partition(":")[0])
    return addresses


@pytest.mark.nightly
def test_a_run_of_two_processes_listens_on_loopback_alone(tmp_path: Path) -> None:
    command = [
        *(sys.executable, "-m", "runner", "dataset=digits", "mesh=batch2", "engine=jax", "cluster=local"),
        *("trainer.epochs=100000", "trainer.progress=none", "trainer.checkpoint.enabled=false", "tracking=none"),
        f"hydra.run.dir={tmp_path / 'run'}",
    ]
    with (tmp_path / "said").open("wb") as said:
        process = forks.Popen(
            command, library=forks.JAX, cwd=tmp_path, env=dict(os.environ), stdout=said, stderr=said,
            stdin=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip
    # The last port opens with the first collective. Nothing more opens a moment after the engine is connected.
    addresses: set[str] = set()
    deadline = time.monotonic() + _LONGEST_S
    quiet_since = time.monotonic()
    while time.monotonic() < deadline and process.poll() is None:
        before = set(addresses)
        for there in working_in.there(tmp_path):
            addresses |= listening(there.pid)
        if addresses != before:
            quiet_since = time.monotonic()
        has_trained = "mesh batch=2" in (tmp_path / "said").read_text(errors="replace") and addresses
        if has_trained and time.monotonic() - quiet_since > 15.0:
            break
        time.sleep(_POLL_S)
    code = process.poll()
    working_in.end(tmp_path)
    process.wait()
    assert code is None, (tmp_path / "said").read_text()
    assert addresses
    assert addresses <= _LOOPBACK


def test_a_socket_on_all_interfaces_is_told_from_one_on_loopback() -> None:
    before = listening(os.getpid())
    with socket.create_server(("127.0.0.1", 0)):
        assert listening(os.getpid()) - before <= {"0100007F"}
        with socket.create_server(("0.0.0.0", 0)):
            assert "00000000" in listening(os.getpid())

"""A network of this process and of those that it starts, which can go down and up: a network namespace (Linux, root).

Its only interface is loopback, by which the processes of a run reach each other and their store.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests import forks

_OWN = Path("/proc/thread-self/ns/net")

# Of unshare(2) and setns(2); Python has these calls since 3.12.
_CLONE_NEWNET = 0x40000000


@contextmanager
def own_network() -> Iterator[bool]:
    """Moves this thread into a network of its own for the block; yields whether that is possible here.

    Programs that are forked in the block are in that network too: their servers are started in it.
    """
    if sys.platform != "linux" or shutil.which("ip") is None:
        yield False
        return
    with _OWN.open() as before:
        try:
            _call("unshare", _CLONE_NEWNET)
            _set_loopback("up")
        except (OSError, subprocess.CalledProcessError):
            _call("setns", before.fileno(), _CLONE_NEWNET)
            yield False
            return
        servers = dict(forks._servers)
        forks._servers.clear()
        try:
            yield True
        finally:
            forks._servers.clear()
            forks._servers.update(servers)
            _call("setns", before.fileno(), _CLONE_NEWNET)


def lose_network(seconds: float) -> None:
    """Takes the network of `own_network` down, and up again after some seconds."""
    _set_loopback("down")
    try:
        time.sleep(seconds)
    finally:
        _set_loopback("up")


def _call(name: str, *arguments: int) -> None:
    if getattr(ctypes.CDLL(None, use_errno=True), name)(*arguments):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), name)


def _set_loopback(state: str) -> None:
    subprocess.run(["ip", "link", "set", "lo", state], check=True, capture_output=True, timeout=20)

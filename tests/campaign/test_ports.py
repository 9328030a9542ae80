"""A short campaign of what runs of several processes listen on."""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path

import pytest

from tests.campaign import ports
from tests.campaign.ports import Run

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="sockets are found in /proc")


def test_dtensor_in_several_processes_does_not_start_before_its_ports_are_accepted(tmp_path: Path) -> None:
    case = ports.rejected(Run("keras_dtensor", accepted=False), tmp_path / "case")
    assert case.held, case.note


@pytest.mark.nightly
@pytest.mark.parametrize("run", [Run("jax", accepted=False), Run("keras_dtensor", accepted=True)], ids=str)
def test_what_a_run_listens_on_is_what_the_page_says(tmp_path: Path, run: Run) -> None:
    case = ports.opened(run, tmp_path / "case")
    assert case.held, case.note


def test_a_socket_on_all_interfaces_is_told_from_one_on_loopback() -> None:
    before = ports.listening(os.getpid())
    with socket.create_server(("127.0.0.1", 0)):
        assert ports.listening(os.getpid()) - before <= {"0100007F"}
        with socket.create_server(("0.0.0.0", 0)):
            assert "00000000" in ports.listening(os.getpid())

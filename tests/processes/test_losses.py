"""What the launcher does about a process that ends badly: the switchboard hears of one that never came."""

from __future__ import annotations

import json
import signal
import socket
import time
from collections.abc import Mapping
from typing import Any

import pytest

from runner.cluster import launch
from runner.cluster.coordinator import Coordinator
from runner.cluster.launch import _code, _Loss
from runner.cluster.messages import authenticate
from runner.cluster.place import Place


@pytest.fixture
def place() -> Place:
    return Place(1, 2, "127.0.0.1", launch.free_port(), "secret", "local")


def switchboard(place: Place, start_timeout: float = 60.0) -> Coordinator:
    listening = socket.create_server((place.host, place.port))
    return Coordinator(listening, place.count, place.token, start_timeout)


def heard(loss: _Loss) -> bool:
    until = time.monotonic() + 20
    while not loss.is_told and time.monotonic() < until:
        time.sleep(0.01)
    return loss.is_told


def told(place: Place) -> Mapping[str, Any]:
    """Comes to the switchboard, and returns what it says of the run's end."""
    joins = {"kind": "join", "index": 1, "count": 2, "about": {"host": "here", "pid": 7}}
    with socket.create_connection((place.host, place.port), timeout=20) as one, one.makefile("rb") as lines:
        authenticate(one, place.token)
        one.sendall(json.dumps(joins).encode() + b"\n")
        found = (json.loads(line) for line in lines)
        return next(said for said in found if said["kind"] == "ended")


@pytest.mark.parametrize(
    ("code", "signum", "why"),
    [
        (-9, None, "process 0 was killed by SIGKILL"),
        (1, None, "process 0 ended with exit code 1"),
        (143, 15, "process 0 ended with exit code 143"),
    ],
)
def test_those_that_come_hear_of_one_that_never_came(place: Place, code: int, signum: int | None, why: str) -> None:
    loss = _Loss(place)
    loss.begin(0, code)  # the switchboard is not there yet
    switchboard(place)
    assert heard(loss)
    ended = told(place)
    assert (ended["why"], ended["signum"]) == (why, signum)


@pytest.mark.parametrize(
    ("codes", "first_bad", "signals", "code"),
    [
        ([0, 0], 0, [], 0),
        ([0, 0], 0, [signal.SIGTERM], 0),  # it came too late
        ([1, 1], -9, [], 1),
        ([2, 2], 2, [], 2),
        ([0, -9], -9, [], 1),
        ([-9, 1], -9, [], 1),
        ([143, 143], 143, [], 143),
        ([-9, 143], 143, [], 143),  # process 0 was not ready to hear of it
        ([1, -9], -9, [signal.SIGINT], 130),
    ],
)
def test_the_exit_code_says_how_the_run_ended(codes: list[int], first_bad: int, signals: list[int], code: int) -> None:
    assert _code(codes, [False] * len(codes), first_bad, signals) == code

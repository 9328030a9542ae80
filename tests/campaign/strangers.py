"""Lets strangers at the coordinator of a run of several processes: none may end the run or fill its memory.

A case is a run of two processes that has begun, and what a stranger does to its port on 127.0.0.1. The run must then
end well when it is asked to, with nothing of the stranger's in its output. The processes compute nothing, see
`tests.processes.acts`, so that a case takes seconds.
"""

from __future__ import annotations

import json
import random
import signal
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

from runner.processes.launch import free_port
from runner.processes.messages import GREETING
from tests.campaign.base import Case
from tests.proc import place_of
from tests.processes.started import Process, closing, team, until

CASES = 28
_GROWTH_MB = 64  # that a flood may cost the coordinator; six lines of 63 MiB took 400, and twelve connections 2,200
_HUGE = 63 << 20
_BLINK_S = 0.2


def connected(port: int) -> socket.socket:
    """Returns a connection to the coordinator."""
    return socket.create_connection(("127.0.0.1", port), timeout=10.0)


def said_by(connection: socket.socket) -> bytes:
    """Returns what the coordinator says, as far as it does at once."""
    connection.settimeout(5.0)
    with suppress(OSError):
        return connection.recv(GREETING)
    return b""


def junk(port: int, draw: random.Random) -> str:
    """Says what is no message."""
    lines = [b"GET / HTTP/1.1\r\n\r\n", b"[]\n", b"{}\n", b"null\n", b"\xff\xfe\n", b"[" * 3000 + b"\n", b"\n", b""]
    lines.append(b"\x1b]0;owned\x07\x1b[2J\n")
    lines.append(draw.randbytes(2000) + b"\n")
    for line in lines:
        with connected(port) as stranger:
            stranger.sendall(line)
            said_by(stranger)
    return ""


def huge(port: int, draw: random.Random) -> str:
    """Sends lines of 63 MiB without an end, as far as the coordinator takes them."""
    del draw
    with ExitStack() as opened:
        for _ in range(6):
            stranger = opened.enter_context(connected(port))
            stranger.settimeout(_BLINK_S)
            with suppress(OSError):
                stranger.sendall(b"x" * _HUGE)
    return ""


def flood(port: int, draw: random.Random) -> str:
    """Opens many connections and holds them open, some half said."""
    with ExitStack() as opened:
        for _ in range(400):
            with suppress(OSError):
                stranger = opened.enter_context(connected(port))
                stranger.sendall(b"{" * draw.randrange(GREETING))
        time.sleep(1.0)
    return ""


def taken(port: int, draw: random.Random) -> str:
    """Joins as a process that is there, by the old protocol and without a proof."""
    index = draw.randrange(2)
    about = {"host": "\x1b[2Jevil\n", "pid": 1, "agrees": {}}
    for token in ("", "Slurm 112", "0" * 64):
        joins = {"kind": "join", "index": index, "count": 2, "token": token, "about": about, "proof": "0" * 64}
        with connected(port) as stranger:
            said_by(stranger)
            stranger.sendall(json.dumps(joins).encode() + b"\n")
            if b"ended" in said_by(stranger):
                return "a stranger was told of the run"
    return ""


def lost(port: int, draw: random.Random) -> str:
    """Says, as the launcher does, that a process was lost."""
    del draw
    for fields in ({}, {"proof": None}, {"proof": 7}, {"proof": "\ud800"}, {"answer": [], "proof": ""}):
        word = {"kind": "lost", "index": 1, "token": "", "why": "gone", "signum": None, **fields}
        with connected(port) as stranger:
            stranger.sendall(json.dumps(word).encode() + b"\n")
            said_by(stranger)
    return ""


def replayed(port: int, draw: random.Random) -> str:
    """Sends the coordinator's challenge, and its own answer, back to it on another connection."""
    del draw
    with connected(port) as first, connected(port) as second:
        challenges = [json.loads(said_by(stranger))["challenge"] for stranger in (first, second)]
        if challenges[0] == challenges[1]:
            return "two connections have the same challenge"
        for stranger, challenge in ((first, challenges[1]), (second, challenges[0])):
            stranger.sendall(json.dumps({"answer": challenge, "proof": challenge}).encode() + b"\n")
            if b"proof" in said_by(stranger):
                return "a proof that was not made for the challenge was taken"
    return ""


def slow(port: int, draw: random.Random) -> str:
    """Says a byte at a time, and is gone in the middle."""
    with ExitStack() as opened:
        strangers = [opened.enter_context(connected(port)) for _ in range(20)]
        for _ in range(20):
            for stranger in strangers:
                with suppress(OSError):
                    stranger.sendall(draw.randbytes(1))
            time.sleep(_BLINK_S / 4)
    return ""


ACTS: tuple[Callable[[int, random.Random], str], ...] = (junk, huge, flood, taken, lost, replayed, slow)


def memory_mb(pid: int) -> float:
    """Returns the most memory that a process has held."""
    place = place_of(pid)
    assert place is not None
    lines = (place / "status").read_text().splitlines()
    (line,) = [line for line in lines if line.startswith("VmHWM:")]
    return float(line.split()[1]) / 1024


def tried(act: Callable[[int, random.Random], str], draw: random.Random, folder: Path) -> Case:
    """Lets strangers at a run that has begun, and then ends it by a signal."""
    port = free_port()
    wrong = []
    with closing(*team(folder, "step", 2, port)) as started:
        until(lambda: all(process.said for process in started))
        before = memory_mb(started[0].process.pid)
        try:
            wrong.append(act(port, draw))
        except (OSError, ValueError, KeyError) as error:
            wrong.append(f"{type(error).__name__}: {error}")
        gone = [index for index, process in enumerate(started) if process.process.poll() is not None]
        grown = 0.0
        if gone:
            wrong.append(f"processes {gone} have ended")
        else:
            grown = memory_mb(started[0].process.pid) - before
            wrong += _ended(started)
    if grown > _GROWTH_MB:
        wrong.append(f"memory grew by {grown:.0f} MB")
    wrong = [text for text in wrong if text]
    return Case(act.__name__, not wrong, "; ".join(wrong) or f"memory grew by {grown:.0f} MB")


def _ended(started: tuple[Process, ...]) -> list[str]:
    """Ends a run by a signal; returns what is not as in a run that nobody disturbed."""
    started[1].send(signal.SIGTERM)
    wrong = []
    for index, process in enumerate(started):
        end = process.end()
        if (end.code, list(end.lines)) != (128 + signal.SIGTERM, ["interrupted"]):
            wrong.append(f"process {index} ends with exit code {end.code} and {end.lines}")
    return wrong


def run(cases: int, seed: int, folder: Path) -> Iterator[Case]:
    """Tries the acts in turn; see `tests.campaign.base.Campaign`."""
    for number in range(cases):
        draw = random.Random(f"{seed} {number}")
        yield tried(ACTS[number % len(ACTS)], draw, folder / f"case-{number}")

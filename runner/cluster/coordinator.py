"""The coordinator: a server in process 0 that broadcasts, all-gathers, and notices lost processes.

Every connection must first prove that it knows the secret of the run: process 0 sends a challenge, the peer its answer
and the HMAC-SHA256 of both, and process 0 its own HMAC. Until then a connection may send a line of 4 KiB within 10 s,
and at most 64 may wait. So a stranger can neither end a run nor fill the memory. What follows is not encrypted.

A message is a line of JSON with a `kind`:

    join      a process joins: index, about
    begin     to all: all have joined and agree
    beat      sign of life, in both directions
    post      process 0 broadcasts a value
    all       a process gives its value for an all_gather; with the last one, all get the list of values
    first     to process 0 only: a signal
    bye       a process leaves, or has heard of the end; with a reason if it failed
    ended     to all: the run ends, with the reason
"""

from __future__ import annotations

import asyncio
import json
import secrets
import socket
import threading
import time
from collections.abc import AsyncIterator, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from runner.cluster import messages
from runner.cluster.timeouts import BEAT_S, LAST_WORDS_S, PROOF_S, SILENCE_S
from runner.errors import shown

# Connections that have not proved the secret yet. asyncio buffers up to 256 KiB of each, and a run on a large cluster
# joins within seconds.
MOST_WAITING = 64
# Between two looks at whether the others have heard; short next to an exit.
_POLL_S = 0.02
# Bytes read at a time.
_CHUNK = 1 << 18
Message = Mapping[str, Any]


@dataclass
class _Peer:
    """A process that joins or has joined; it `has_left` if it has said so, or is lost."""

    writer: asyncio.StreamWriter
    # Its host, its process id, and what it must agree on with process 0.
    about: Mapping[str, Any] = field(default_factory=dict)
    heard_at: float = field(default_factory=time.monotonic)
    has_left: bool = False


class Coordinator:
    """The server, in a thread of its own. All its state belongs to that thread's event loop."""

    def __init__(self, listening: socket.socket, count: int, token: str, start_timeout: float) -> None:
        """Starts the thread on a bound socket; `count` processes with the token must join in `start_timeout` s."""
        self._listening = listening
        self._count = count
        self._token = token
        self._start_timeout = start_timeout
        self._peers: dict[int, _Peer] = {}
        # Values of an unfinished all_gather, by key and process.
        self._values: dict[str, dict[int, Any]] = {}
        # Connections that have not proved the secret yet, the oldest first.
        self._waiting: list[asyncio.Task[None]] = []
        self._denied = 0
        self._ended: Message | None = None
        self._begun = False
        threading.Thread(target=asyncio.run, args=(self._serve(),), daemon=True).start()

    def say_last_words(self) -> None:
        """Waits until the others have heard why the run ends, before this process exits."""
        deadline = time.monotonic() + LAST_WORDS_S
        while time.monotonic() < deadline:
            # Copied, because the thread of the loop may add a peer.
            peers = list(self._peers.items())
            if all(index == 0 or peer.has_left for index, peer in peers):
                return
            time.sleep(_POLL_S)

    async def _serve(self) -> None:
        started = time.monotonic()
        # The limit is that of a stranger's line; `_lines` puts longer ones together.
        server = await asyncio.start_server(self._meet, sock=self._listening, limit=messages.GREETING)
        while server.is_serving():
            await asyncio.sleep(BEAT_S)
            now = time.monotonic()
            self._tell_all({"kind": "beat"})
            if not self._begun and now - started > self._start_timeout:
                missing = sorted(set(range(self._count)) - set(self._peers))
                why = (
                    f"{len(missing)} of {self._count} processes did not connect within {self._start_timeout:g} s "
                    f"(cluster.start_timeout): {', '.join(map(str, missing))}; check that every process was started "
                    "and can reach process 0"
                )
                if self._denied:
                    why += f"; {self._denied} connections had another secret"
                self._end(why)
            for index, peer in list(self._peers.items()):
                if not peer.has_left and now - peer.heard_at > SILENCE_S:
                    # Process 0 does not wait for it when it exits.
                    peer.has_left = True
                    self._end(f"{self._name(index)} has not answered for {SILENCE_S:.0f} s")

    async def _meet(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serves a connection, which may be anybody's: nothing counts before it has proved the secret.

        If too many wait to prove it, the oldest of them is dropped.
        """
        task = asyncio.current_task()
        assert task is not None
        if len(self._waiting) >= MOST_WAITING:
            self._waiting.pop(0).cancel()
        self._waiting.append(task)
        try:
            async with asyncio.timeout(PROOF_S):
                own_proof = await self._proved(reader, writer)
        except (messages.DeniedError, TimeoutError, OSError, ValueError, asyncio.CancelledError):
            writer.close()
            return
        finally:
            if task in self._waiting:
                self._waiting.remove(task)
        # Sent when it no longer waits: a flood of strangers must not end a connection that has had its answer.
        writer.write(own_proof)
        await self._hear(reader, writer)

    async def _proved(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
        """Verifies the other side's secret, and returns what proves ours; raises DeniedError or ValueError."""
        challenge = secrets.token_hex(messages.NONCE)
        writer.write(messages.encoded({"challenge": challenge}))
        said = messages.greeting(await reader.readline())
        answer = str(said.get("answer"))
        if not messages.is_proof(said.get("proof"), self._token, messages.PEER, challenge, answer):
            self._denied += 1
            writer.write(messages.encoded({"denied": True}))
            raise messages.DeniedError
        return messages.encoded({"proof": messages.proof(self._token, messages.FIRST, challenge, answer)})

    async def _hear(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serves a connection that has proved the secret, until it ends."""
        index: int | None = None
        peer = _Peer(writer)
        lines = self._lines(reader, peer)
        try:
            said = json.loads(await asyncio.wait_for(anext(lines), SILENCE_S))
            if said.get("kind") == "join":
                index = self._join(said, peer)
            if index is None:
                return
            async for line in lines:
                self._take(index, json.loads(line), line)
        except Exception:  # a broken connection, or a peer of another version whose messages have other fields
            pass
        finally:
            if index is not None and not peer.has_left:
                peer.has_left = True
                self._end(f"{self._name(index)} disconnected without a message; it was probably killed")
            writer.close()

    async def _lines(self, reader: asyncio.StreamReader, peer: _Peer) -> AsyncIterator[bytes]:
        """Yields a process's lines, of any length. While a long one arrives, the process does not count as silent."""
        line = bytearray()
        while chunk := await reader.read(_CHUNK):
            peer.heard_at = time.monotonic()
            *ends, start = chunk.split(b"\n")
            for end in ends:
                yield bytes(line) + end + b"\n"
                line.clear()
            line += start

    def _join(self, said: Message, peer: _Peer) -> int | None:
        """Adds a process and returns its index; None: it can't be part of this run."""
        index = int(said["index"])
        if not 0 <= index < self._count:
            why = (
                f"process 0 has cluster.processes={self._count}, so it has no process {index}; set the same number "
                "for all, or set cluster.coordinator to a free port if it is another run's"
            )
            self._send(peer, messages.encoded(_ended(why)))
            return None
        peer.about = said["about"]
        if self._ended is not None:
            self._send(peer, messages.encoded(self._ended))
            return None
        if index in self._peers:
            others = f"{_where(self._peers[index].about)}, and {_where(peer.about)}"
            why = f"two processes have index {index}: {others}; set a different cluster.index for each process"
            # Before process 0, which exits without waiting for a rejected connection.
            self._send(peer, messages.encoded(_ended(why)))
            # A run that has begun has all its processes, and continues.
            if not self._begun:
                self._end(why)
            return None
        self._peers[index] = peer
        self._compare(self._peers if index == 0 else [index])
        if len(self._peers) == self._count and self._ended is None:
            self._begun = True
            self._tell_all({"kind": "begin"})
        return index

    def _compare(self, indices: Iterable[int]) -> None:
        """Ends the run if a process disagrees with process 0, once that has joined."""
        if 0 not in self._peers:
            return
        agrees = self._peers[0].about["agrees"]
        for index in sorted(indices):
            differing = _difference(agrees, self._peers[index].about["agrees"])
            if differing:
                self._end(f"{self._name(index)} and process 0 differ in {differing}")
                return

    def _take(self, index: int, said: Message, line: bytes) -> None:
        match said["kind"]:
            case "post":
                for other, peer in self._peers.items():
                    if other != index:
                        self._send(peer, line)
            case "all":
                values = self._values.setdefault(said["key"], {})
                values[index] = said["value"]
                if len(values) == self._count:
                    del self._values[said["key"]]
                    in_order = [values[other] for other in range(self._count)]
                    self._tell_all({"kind": "all", "key": said["key"], "value": in_order})
            case "first":
                self._send(self._peers[0], line)
            case "bye":
                # A process that reports a timeout stays until it hears of the end.
                self._peers[index].has_left = not said.get("stays")
                if said.get("why"):
                    why = said["why"]
                    if not said.get("own"):
                        why = f"{self._name(index)} failed: {why}"
                    self._end(why, said.get("signum"), said.get("code", 1))

    def _end(self, why: str, signum: int | None = None, code: int = 1) -> None:
        """Tells all processes, and those that connect later, why the run ends. Only the first reason counts."""
        if self._ended is not None:
            return
        self._ended = _ended(why, signum, code)
        self._tell_all(self._ended)

    def _tell_all(self, message: Message) -> None:
        line = messages.encoded(message)
        for peer in self._peers.values():
            self._send(peer, line)

    def _send(self, peer: _Peer, line: bytes) -> None:
        if not peer.writer.is_closing():
            peer.writer.write(line)

    def _name(self, index: int) -> str:
        return f"process {index} ({_where(self._peers[index].about)})"


def _difference(first: Mapping[str, object], other: Mapping[str, object]) -> str:
    """Returns the first setting whose values differ, with the other process's value first; empty if none does.

    >>> _difference({"keras": "3.15.1", "jax": "0.10"}, {"keras": "3.15.0", "jax": "0.10"})
    'keras: 3.15.0 and 3.15.1'
    """
    for key in sorted({*first, *other}):
        value_of_first = first.get(key, "nothing")
        value_of_other = other.get(key, "nothing")
        if value_of_first != value_of_other:
            return f"{key}: {shown(value_of_other)} and {shown(value_of_first)}"
    return ""


def _where(about: Mapping[str, Any]) -> str:
    return messages.printable(f"{about['host']}, pid {about['pid']}")


def _ended(why: str, signum: int | None = None, code: int = 1) -> Message:
    """Returns the message that a run ends, to all or to a newcomer that can't be part of it."""
    return {"kind": "ended", "why": messages.printable(why), "signum": signum, "code": code}

"""Process 0's switchboard: who is there, what one says to all, what all say of one thing, and who has gone.

Whoever connects has to prove the secret of the run first: process 0 sends a challenge, the peer its answer and the
HMAC-SHA256 of both, and process 0 its own HMAC. Until then a connection may send 4 KiB, within 10 s, and 64 may
wait. So a stranger can neither end a run nor fill the memory. What follows is not encrypted.

A message is a line of JSON with a `kind`:

    join      a process comes: index, count, about            begin   all have come, and agree
    beat      it lives; both ways
    post      process 0 says a value, which goes to the others
    all       each says its value of one thing; when all have, every one gets the list of them
    first     goes to process 0 alone: a signal that came, a record of a log, what the process takes of its machine
    bye       a process leaves, or has heard of the end; with a reason where it failed
    ended     to all: the run ends, for this reason
    lost      the launcher: a process has ended badly
"""

from __future__ import annotations

import asyncio
import json
import socket
import threading
import time
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Any

from runner.processes.differences import difference
from runner.processes.messages import (
    FIRST,
    GREETING,
    LONGEST,
    PEER,
    DeniedError,
    encoded,
    greeting,
    is_proof,
    nonce,
    printable,
    proof,
)

BEAT_S = 1.0
SILENCE_S = 15.0  # of a process that lives: a machine whose cores are taken may keep its threads waiting for seconds
PROOF_S = 10.0  # within which a connection must prove the secret, on a machine whose cores are taken too
MOST_WAITING = 64  # connections that have not proved it yet; 4 KiB each
_LAST_WORDS_S = 3.0
_POLL_S = 0.02
_CHUNK = 1 << 18
_BROKEN = (
    StopAsyncIteration,
    TimeoutError,
    OSError,
    ValueError,
    TypeError,
    AttributeError,
    LookupError,
    RecursionError,
)
_TOGETHER = 1 << 20  # bytes of values that go in one message
Message = Mapping[str, Any]


@dataclass
class _Guest:
    """A process that has come.

    Attributes:
      writer: to it.
      about: what it said of itself.
      heard: when it last said something.
      left: it has said that it leaves.
    """

    writer: asyncio.StreamWriter
    about: Mapping[str, Any]
    heard: float
    left: bool = False


class Hub:
    """The switchboard, in a thread of its own."""

    def __init__(self, listening: socket.socket, count: int, token: str, start_timeout: float) -> None:
        """Begins to listen.

        Args:
          listening: bound.
          count: processes that must come.
          token: the secret that each must know.
          start_timeout: seconds within which they must have come.
        """
        self._listening = listening
        self._count = count
        self._token = token
        self._start_timeout = start_timeout
        self._guests: dict[int, _Guest] = {}
        self._guest_of: dict[asyncio.StreamWriter, _Guest] = {}
        self._values: dict[str, dict[int, tuple[Any, int]]] = {}  # with their sizes in bytes
        self._waiting: dict[asyncio.Task[None], None] = {}  # for a proof; the oldest first
        self._tasks: set[asyncio.Task[None]] = set()  # the loop itself keeps no reference
        self._denied = 0
        self._ended: Message | None = None
        self._begun = False
        self._awake = time.monotonic()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_until_complete, args=(self._serve(),), daemon=True)
        self._thread.start()

    def say_last_words(self) -> None:
        """Gives the others the time to hear why this process ends, before it does."""
        until = time.monotonic() + _LAST_WORDS_S
        while time.monotonic() < until and any(index and not one.left for index, one in list(self._guests.items())):
            time.sleep(_POLL_S)

    async def _serve(self) -> None:
        started = time.monotonic()
        self._listening.setblocking(False)
        accepting = asyncio.create_task(self._accept())
        self._tasks.add(accepting)
        while True:
            await asyncio.sleep(BEAT_S)
            now = time.monotonic()
            if now - self._awake > SILENCE_S:
                self._end("")
            self._awake = now
            self._tell_all({"kind": "beat"})
            if not self._begun and now - started > self._start_timeout:
                missing = [str(index) for index in range(self._count) if index not in self._guests]
                which = f"process{'es' if len(missing) > 1 else ''} {', '.join(missing)}"
                denied = f"; {self._denied} connections had another secret" if self._denied else ""
                self._end(
                    f"{which} of {self._count} did not come within {self._start_timeout:g} s "
                    f"(cluster.start_timeout); see that every process was started and reaches process 0{denied}"
                )
            for index, guest in list(self._guests.items()):
                if not guest.left and now - guest.heard > SILENCE_S:
                    guest.left = True  # nobody waits for it any more
                    self._end(f"{self._name(index)} has not answered for {SILENCE_S:.0f} s")

    async def _accept(self) -> None:
        """Lets connections come; few wait for their proof at a time, and the oldest of them goes first."""
        loop = asyncio.get_running_loop()
        while True:
            try:
                connection, _ = await loop.sock_accept(self._listening)
            except OSError:  # the connection broke, or this process has too many files open
                await asyncio.sleep(_POLL_S)
                continue
            if len(self._waiting) >= MOST_WAITING:
                oldest = next(iter(self._waiting))
                del self._waiting[oldest]
                oldest.cancel()
            task = asyncio.create_task(self._meet(connection))
            self._waiting[task] = None
            self._tasks.add(task)
            task.add_done_callback(self._forget)
            await asyncio.sleep(0)  # a flood of connections leaves the others their turn

    def _forget(self, task: asyncio.Task[None]) -> None:
        self._waiting.pop(task, None)
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()

    async def _meet(self, connection: socket.socket) -> None:
        """Hears a connection, which may be anybody's: nothing that it says counts before it has proved the secret."""
        own = asyncio.current_task()
        try:
            await asyncio.wait_for(self._prove(connection, own), PROOF_S)
            reader, writer = await asyncio.open_connection(sock=connection)
        except (DeniedError, TimeoutError, OSError, ValueError, asyncio.CancelledError):
            connection.close()
            return
        await self._hear(reader, writer)

    async def _prove(self, connection: socket.socket, task: asyncio.Task[None] | None) -> None:
        """Has the other side prove the secret, then proves it.

        Args:
          connection: the other side's.
          task: that hears it, which no longer counts as waiting once the secret is proved: a flood of strangers must
            not cancel it after the other side has had its answer.

        Raises:
          DeniedError: it does not know the secret.
        """
        loop = asyncio.get_running_loop()
        connection.setblocking(False)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        challenge = nonce()
        await loop.sock_sendall(connection, encoded({"challenge": challenge}))
        line = b""
        while not line.endswith(b"\n"):
            chunk = await loop.sock_recv(connection, GREETING - len(line))
            if not chunk:  # it has gone, or has said too much
                raise DeniedError
            line += chunk
        said = greeting(line)
        answer = str(said.get("answer"))
        if not is_proof(said.get("proof"), self._token, PEER, challenge, answer):
            self._denied += 1
            await loop.sock_sendall(connection, encoded({"denied": True}))
            raise DeniedError
        if task is not None:
            self._waiting.pop(task, None)
        await loop.sock_sendall(connection, encoded({"proof": proof(self._token, FIRST, challenge, answer)}))

    async def _hear(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Hears one that has proved the secret, to its end."""
        index: int | None = None
        lines = self._lines(reader, writer)
        try:
            said = json.loads(await asyncio.wait_for(anext(lines), SILENCE_S))
            if said.get("kind") == "lost":
                self._lose(said)
            if said.get("kind") != "join":
                return
            if not 0 <= int(said["index"]) < max(self._count, int(said["count"])):
                why = "another run's process 0 listens there; set cluster.coordinator to a free port"
                writer.write(_only_for_one(why))
                return
            index = self._join(said, writer)
            if index is None:
                return
            async for line in lines:
                self._take(index, json.loads(line), line)
        except _BROKEN:
            pass  # its connection broke, or it is of another version
        finally:
            if index is not None and not self._guests[index].left:
                self._guests[index].left = True
                self._end(f"{self._name(index)} is gone without a word, as one that was killed")
            writer.close()

    async def _lines(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> AsyncIterator[bytes]:
        """Yields what a process says; one that is sending a long message is no silent one.

        Raises:
          ValueError: a line is too long.
        """
        line = bytearray()
        while chunk := await reader.read(_CHUNK):
            guest = self._guest_of.get(writer)
            if guest is not None:
                guest.heard = time.monotonic()
            *whole, rest = chunk.split(b"\n")
            for part in whole:
                yield bytes(line) + part + b"\n"
                line.clear()
            line += rest
            if len(line) > LONGEST:
                raise ValueError("a line is too long")

    def _lose(self, said: Message) -> None:
        """Takes the launcher's word for the end of a process, which may never have come."""
        guest = self._guests.get(said["index"])
        if guest is None or not guest.left:
            self._end(said["why"], said["signum"])

    def _join(self, said: Message, writer: asyncio.StreamWriter) -> int | None:
        """Lets a process in; returns its index, None where it is one too many."""
        index = int(said["index"])
        about = said["about"]
        if self._ended is not None:
            writer.write(_line(self._ended))
            return None
        why = ""
        if int(said["count"]) != self._count:
            why = (
                f"process {index} ({_where(about)}) was told of {said['count']} processes, process 0 of {self._count}"
            )
        elif index in self._guests:
            others = f"{_where(self._guests[index].about)}, and {_where(about)}"
            why = f"process {index} came twice: {others}; give each process its own index"
        if why and self._begun:
            writer.write(_only_for_one(why))  # a run that has begun has all its processes: it goes its way
            return None
        if why:
            self._end(why, newcomer=writer)
            return None
        guest = _Guest(writer, about, time.monotonic())
        self._guests[index] = guest
        self._guest_of[writer] = guest
        if len(self._guests) == self._count:
            self._begin()
        return index

    def _begin(self) -> None:
        first = self._guests[0].about
        for index in sorted(self._guests):
            found = difference(first["agrees"], self._guests[index].about["agrees"])
            if found:
                self._end(f"{self._name(index)} does not agree with process 0: {found}")
                return
        self._begun = True
        self._tell_all({"kind": "begin"})

    def _take(self, index: int, said: Message, line: bytes) -> None:
        match said["kind"]:
            case "post":
                for other, guest in self._guests.items():
                    if other != index:
                        self._send(guest, line)
            case "all":
                values = self._values.setdefault(said["key"], {})
                values[index] = (said["value"], len(line))
                if len(values) == self._count:
                    self._tell_values(said["key"], self._values.pop(said["key"]))
            case "first":
                self._send(self._guests[0], _line({**said, "index": index}))
            case "bye":
                self._guests[index].left = not said.get("stays")
                if said.get("why"):
                    by = "" if said.get("own") else f"{self._name(index)} failed: "
                    self._end(f"{by}{said['why']}", said.get("signum"), said.get("code", 1), index)

    def _tell_values(self, key: str, values: Mapping[int, tuple[Any, int]]) -> None:
        """Tells all the values of all, in their order, in as many messages as their sizes need."""
        together: list[Any] = []
        size = 0
        for index in range(self._count):
            value, bytes_of_value = values[index]
            if together and size + bytes_of_value > _TOGETHER:
                self._tell_all({"kind": "all", "key": key, "value": together})
                together = []
                size = 0
            together.append(value)
            size += bytes_of_value
        self._tell_all({"kind": "all", "key": key, "value": together})

    def _end(
        self,
        why: str,
        signum: int | None = None,
        code: int = 1,
        index: int | None = None,
        newcomer: asyncio.StreamWriter | None = None,
    ) -> None:
        """Tells all why the run ends, once; and who comes later."""
        if self._ended is None:
            stopped = time.monotonic() - self._awake
            if stopped > SILENCE_S:  # which the others took for its end
                why = f"process 0 was stopped for {stopped:.0f} s"
            self._ended = {"kind": "ended", "why": printable(why), "signum": signum, "code": code, "index": index}
            if newcomer is not None:  # before process 0, which does not wait for one that is not let in
                newcomer.write(_line(self._ended))
            self._tell_all(self._ended)

    def _tell_all(self, message: Message) -> None:
        line = _line(message)
        for guest in self._guests.values():
            self._send(guest, line)

    def _send(self, guest: _Guest, line: bytes) -> None:
        if not guest.writer.is_closing():
            guest.writer.write(line)

    def _name(self, index: int) -> str:
        return f"process {index} ({_where(self._guests[index].about)})"


def _where(about: Mapping[str, Any]) -> str:
    return printable(f"{about['host']}, pid {about['pid']}")


def _only_for_one(why: str) -> bytes:
    """Returns what tells a newcomer alone that it can't be part of this run."""
    return _line({"kind": "ended", "why": printable(why), "signum": None, "code": 1, "index": None})


def _line(message: Message) -> bytes:
    return json.dumps(message).encode() + b"\n"

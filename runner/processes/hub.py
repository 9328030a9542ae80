"""Process 0's switchboard: who is there, what one says to all, what all say of one thing, and who has gone.

A message is a line of JSON with a `kind`:

    join      a process comes: index, count, token, about     begin   all have come, and agree
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
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from runner.processes.differences import difference

BEAT_S = 1.0
SILENCE_S = 15.0  # of a process that lives: a machine whose cores are taken may keep its threads waiting for seconds
LONGEST = 64 << 20  # bytes of a message
_LAST_WORDS_S = 3.0
_POLL_S = 0.02
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
          token: that each must know.
          start_timeout: seconds within which they must have come.
        """
        self._listening = listening
        self._count = count
        self._token = token
        self._start_timeout = start_timeout
        self._guests: dict[int, _Guest] = {}
        self._values: dict[str, dict[int, Any]] = {}
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
        server = await asyncio.start_server(self._meet, sock=self._listening, limit=LONGEST)
        async with server:
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
                    self._end(
                        f"{which} of {self._count} did not come within {self._start_timeout:g} s "
                        "(cluster.start_timeout); see that every process was started and reaches process 0"
                    )
                for index, guest in list(self._guests.items()):
                    if not guest.left and now - guest.heard > SILENCE_S:
                        guest.left = True  # nobody waits for it any more
                        self._end(f"{self._name(index)} has not answered for {SILENCE_S:.0f} s")

    async def _meet(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        index: int | None = None
        try:
            said = json.loads(await asyncio.wait_for(reader.readline(), SILENCE_S))
            if said.get("token") == self._token and said.get("kind") == "lost" and self._token:
                self._lose(said)
            if said.get("kind") != "join":
                return
            if said.get("token") != self._token or not 0 <= int(said["index"]) < max(self._count, int(said["count"])):
                why = "another run's process 0 listens there; set cluster.coordinator to a free port"
                writer.write(_line({"kind": "ended", "why": why, "signum": None, "code": 1, "index": None}))
                return
            index = self._join(said, writer)
            while index is not None and (line := await reader.readline()):
                self._guests[index].heard = time.monotonic()
                self._take(index, json.loads(line), line)
        except (TimeoutError, OSError, ValueError, TypeError, AttributeError, LookupError, RecursionError):
            pass  # a stranger, or one whose connection broke
        finally:
            if index is not None and not self._guests[index].left:
                self._guests[index].left = True
                self._end(f"{self._name(index)} is gone without a word, as one that was killed")
            writer.close()

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
        if why:
            self._end(why, newcomer=writer)
            return None
        self._guests[index] = _Guest(writer, about, time.monotonic())
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
                values[index] = said["value"]
                if len(values) == self._count:
                    del self._values[said["key"]]
                    self._tell_all({**said, "value": [values[one] for one in range(self._count)]})
            case "first":
                self._send(self._guests[0], _line({**said, "index": index}))
            case "bye":
                self._guests[index].left = not said.get("stays")
                if said.get("why"):
                    by = "" if said.get("own") else f"{self._name(index)} failed: "
                    self._end(f"{by}{said['why']}", said.get("signum"), said.get("code", 1), index)

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
            self._ended = {"kind": "ended", "why": why, "signum": signum, "code": code, "index": index}
            if newcomer is not None:  # before process 0, which does not wait for one that is not let in
                newcomer.write(_line(self._ended))
            self._tell_all(self._ended)

    def _tell_all(self, message: Message) -> None:
        for guest in self._guests.values():
            self._send(guest, _line(message))

    def _send(self, guest: _Guest, line: bytes) -> None:
        if not guest.writer.is_closing():
            guest.writer.write(line)

    def _name(self, index: int) -> str:
        return f"process {index} ({_where(self._guests[index].about)})"


def _where(about: Mapping[str, Any]) -> str:
    return f"{about['host']}, pid {about['pid']}"


def _line(message: Message) -> bytes:
    return json.dumps(message).encode() + b"\n"

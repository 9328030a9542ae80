"""A process's connection to the switchboard of process 0: what it says, what it hears, and how it ends with the rest.

A main thread that waits in a collective can't be woken. So where the others are gone, another thread waits a moment
for it, then records the end and ends the process.
"""

from __future__ import annotations

import json
import math
import os
import platform
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, NoReturn, TypeVar

from runner.errors import ConfigError, DataError, EngineError, Interrupted, TrackingError
from runner.host.secrets import scrub
from runner.processes.hub import BEAT_S, SILENCE_S, Hub
from runner.processes.messages import LONGEST, DeniedError, TooLongError, encoded, enter, printable
from runner.processes.place import Place
from runner.processes.secret import VARIABLE as SECRET
from runner.processes.team import ProcessError, Team

T = TypeVar("T")
_AGAIN_S = 0.2  # between tries to reach process 0
_ALONE_S = 5.0  # that the main thread has to end by itself
_END_S = 25.0  # that the record of an end may take
_KINDS = {one.__name__: one for one in (ConfigError, DataError, EngineError, TrackingError)}
Ending = Callable[[str, int | None], None]


class Member(Team):
    """A process among others; see `Team`.

    Attributes:
      place: which one it is.
      address: that the others reach it at.
      has_agreed_to_end: all end by a signal that all were told of, at the same step.
      on_log: process 0: takes a record of another process's log.
    """

    def __init__(self, place: Place, timeout: float = math.inf) -> None:
        """Comes to nobody yet.

        Args:
          place: this process's.
          timeout: the longest that `waiting` may take, in seconds.
        """
        self.index = place.index
        self.count = place.count
        self.place = place
        self._heard = threading.Condition()
        self._posts: dict[str, Any] = {}
        self._alls: dict[str, list[Any]] = {}
        self._parts: dict[str, list[Any]] = {}  # of those that have not come whole
        self._ended: Mapping[str, Any] | None = None
        self._signal: int | None = None
        self._usage: dict[int, Mapping[str, float]] = {}
        self._passed_on = self._left = self._begun = self._main_leaves = False
        self.has_agreed_to_end = False
        self._timeout = timeout
        self._waits_since = math.inf
        self._sending = threading.Lock()
        self._leaving = threading.Lock()
        self._on_end: list[Ending] = []
        self.on_log: Callable[[Mapping[str, Any]], None] = lambda _: None
        self.address = ""
        self._hub: Hub | None = None
        self._socket = socket.socket()  # connected to nobody

    def come(self, agrees: Mapping[str, object], start_timeout: float, address: str | None = None) -> None:
        """Comes to the others, and waits until all have come and agree.

        Args:
          agrees: what must be the same in all, by name; of what JSON can hold.
          start_timeout: seconds within which all must have come.
          address: that this process is reached at; null: the one that leads to process 0.

        Raises:
          ProcessError: process 0's port is taken, it can't be reached or has another secret, one did not come, came
            twice or does not agree.
        """
        place = self.place
        self._hub = self._make_hub(start_timeout) if self.is_first else None
        self._socket = self._connected(start_timeout)
        self._socket.settimeout(None if self._hub else SILENCE_S)  # a process hears its own switchboard, or is stopped
        self.address = address or self._socket.getsockname()[0]
        about = {"host": platform.node(), "pid": os.getpid(), "agrees": agrees}
        self._say("join", index=place.index, count=place.count, about=about)
        for work in (self._listen, self._beat):
            threading.Thread(target=work, daemon=True).start()
        with self._heard:
            self._heard.wait_for(lambda: self._begun or self._ended is not None)
        self.check()

    def _make_hub(self, start_timeout: float) -> Hub:
        place = self.place
        listening = socket.socket(socket.AF_INET6 if ":" in place.host else socket.AF_INET, socket.SOCK_STREAM)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listening.bind((place.host, place.port))
            listening.listen(128)
        except OSError as error:
            raise ProcessError(
                f"process 0 can't listen at {place.host}:{place.port} ({error.strerror}); set cluster.coordinator to "
                "a free port of the machine that process 0 runs on"
            ) from error
        if not _is_loopback(place.host) and _is_loopback(str(listening.getsockname()[0])):
            raise ProcessError(
                f"{place.host} stands for {listening.getsockname()[0]} on this machine, which no other one reaches; "
                "set cluster.coordinator to an address of process 0's machine"
            )
        return Hub(listening, place.count, place.token, start_timeout)

    def _connected(self, start_timeout: float) -> socket.socket:
        where = (self.place.host, self.place.port)
        until = time.monotonic() + start_timeout
        while True:
            try:
                found = socket.create_connection(where, timeout=2.0)
                if found.getsockname() == found.getpeername():  # a port may be connected to itself
                    found.close()
                    raise ConnectionError("nobody listens there")
                self._enter(found)
            except OSError as error:
                if time.monotonic() > until:
                    raise ProcessError(
                        f"process {self.index} does not reach process 0 at {where[0]}:{where[1]} within "
                        f"{start_timeout:g} s ({error.strerror or error}); see that it runs, or set "
                        "cluster.coordinator"
                    ) from error
                time.sleep(_AGAIN_S)
            else:
                found.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                return found

    def _enter(self, connection: socket.socket) -> None:
        """Proves the secret; a connection that process 0 drops while strangers flood it is made again."""
        connection.settimeout(SILENCE_S)
        try:
            enter(connection, self.place.token)
        except TimeoutError as error:
            connection.close()
            raise ProcessError(f"process 0 has not answered for {SILENCE_S:.0f} s") from error
        except DeniedError as error:
            connection.close()
            raise ProcessError(
                f"process {self.index} and what listens at {self.place.host}:{self.place.port} have different "
                "secrets: it is another run, or they share no secret; set cluster.coordinator to a free port, "
                f"or {SECRET} or cluster.secret_file to the same secret for all"
            ) from error
        except OSError:
            connection.close()
            raise

    def _say(self, kind: str, **said: object) -> None:
        try:
            line = encoded({"kind": kind, **said})
        except TooLongError as error:
            raise ProcessError(str(error)) from error
        with self._sending, suppress(OSError):  # who has gone hears nothing, and is noticed by the listener
            self._socket.sendall(line)

    def _beat(self) -> None:
        while not self._left:
            self._say("beat")
            time.sleep(BEAT_S)
            if time.monotonic() - self._waits_since > self._timeout:
                self._waits_since = math.inf
                why = (
                    f"process {self.index} has waited for the others in a collective for {self._timeout:g} s "
                    "(cluster.timeout): one does something else, or takes that long to compile or save"
                )
                self._say("bye", why=why, code=1, own=True, stays=True)

    def _listen(self) -> None:
        why = "process 0 is gone without a word, as one that was killed"
        try:
            with self._socket.makefile("rb") as lines:
                while line := lines.readline(2 * LONGEST):  # a little more than what one process sent
                    self._take(json.loads(line))
        except TimeoutError:
            why = f"process 0 has not answered for {SILENCE_S:.0f} s"
        except (OSError, ValueError):
            pass
        if not self._left:
            self._end({"why": why, "signum": None, "code": 1, "index": 0})

    def _take(self, said: Mapping[str, Any]) -> None:
        with self._heard:
            match said["kind"]:
                case "begin":
                    self._begun = True
                case "post":
                    self._posts[said["key"]] = said["value"]
                case "all":
                    values = self._parts.setdefault(said["key"], [])
                    values += said["value"]
                    if len(values) == self.count:
                        self._alls[said["key"]] = self._parts.pop(said["key"])
                case "first" if "signum" in said:
                    self._signal = self._signal or said["signum"]
                case "first" if "usage" in said:
                    self._usage[said["index"]] = said["usage"]
                case "first":
                    with suppress(Exception):  # a full disk, or a record of another version
                        self.on_log(said)
            self._heard.notify_all()
        if said["kind"] == "ended":
            self._end(said)
            self._say("bye")  # process 0 waits for that, to be heard by all

    def _end(self, ended: Mapping[str, Any]) -> None:
        with self._heard:
            if self._ended is not None:
                return
            self._ended = {**ended, "why": printable(ended.get("why", ""))}
            self._heard.notify_all()
        threading.Thread(target=self._end_too, daemon=True).start()

    def _end_too(self) -> None:
        """Ends this process with the others, where its main thread does not in time."""
        ended = self._ended or {}
        if ended.get("signum") and not self._left:
            with suppress(OSError, RuntimeError):  # it may be waiting for something else than the others
                signal.pthread_kill(threading.main_thread().ident or 0, ended["signum"])
        time.sleep(_ALONE_S)
        if not self._leaving.acquire(blocking=False):
            return  # the main thread is at it
        threading.Thread(target=self._give_up, daemon=True).start()
        why = str(ended.get("why"))
        signum = ended.get("signum")
        for end in reversed(self._on_end):
            with suppress(Exception):
                end(why, signum)
        self.tell_person(why, signum)
        self.exit(128 + signum if signum else int(ended.get("code", 1)))

    def _give_up(self) -> None:
        time.sleep(_END_S)
        os._exit(1)

    def tell_person(self, why: str, signum: int | None) -> None:
        """Says why this process ends; where our launcher shows all of them, process 0 does it for all."""
        if self.is_first or not self.place.is_launched:
            with suppress(OSError, ValueError):
                print("interrupted" if signum else f"error: {scrub(why)}", file=sys.stderr, flush=True)

    def on_end(self, end: Ending) -> Callable[[], None]:
        """Has something done where the others end this process while its main thread is stuck.

        Args:
          end: takes why, and the signal where it was one.

        Returns:
          What takes that back.
        """
        self._on_end.append(end)
        return lambda: self._on_end.remove(end)

    def begin_leaving(self) -> None:
        """Says that the main thread ends this process; waits for ever where that is done already."""
        if not self._main_leaves:
            self._main_leaves = self._leaving.acquire(blocking=False)
        if not self._main_leaves:
            threading.Event().wait()

    def leave(self, code: int, why: str = "", signum: int | None = None, *, own: bool = False) -> NoReturn:
        """Leaves the others and ends this process at once: what the libraries do at their end waits for the others.

        Args:
          code: to exit with.
          why: it failed, in one line; empty: it has done all.
          signum: that ended it.
          own: the line names no process, as all may have the same to say.
        """
        if self._ended is None and (code == 0 or self.has_agreed_to_end):
            try:
                self.all_gather("the end", True)
            except ProcessError as error:
                code = code or (0 if self.is_first else error.code)
            except Interrupted as error:
                code = code or (0 if self.is_first else 128 + error.signum)
        if self._ended is None and (why or signum) and not self.has_agreed_to_end:
            self._say("bye", why=why or f"signal {signum}", signum=signum, code=code, own=own)
        elif self._ended is None:
            self._say("bye")
        self._left = True
        self.exit(code)

    def leave_at_once(self, signum: int) -> None:
        """Leaves by a signal while the main thread waits for the others: in a thread, as that may be speaking."""

        def go() -> None:
            self._say("bye", why=f"signal {signum}", signum=signum, code=128 + signum)
            self.exit(128 + signum)

        threading.Thread(target=go, daemon=True).start()

    def exit(self, code: int) -> NoReturn:
        """Ends this process at once, when the others have heard what there is to hear."""
        self._left = True
        if self._hub is not None:
            self._hub.say_last_words()
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError, ValueError):
                stream.flush()
        os._exit(code)

    def ended(self, within: float = 0.0) -> ProcessError | None:
        """Returns why the run has ended, as far as others told; None where nobody did within so many seconds."""
        with self._heard:
            self._heard.wait_for(lambda: self._ended is not None, timeout=within)
            return None if self._ended is None else ProcessError(self._ended["why"], int(self._ended["code"]))

    def check(self) -> None:
        """Raises `ProcessError`, or `Interrupted`, where the run has ended."""
        ended = self._ended
        if ended is not None:
            if ended.get("signum"):
                raise Interrupted(int(ended["signum"]))
            raise ProcessError(ended["why"], int(ended["code"]))

    def broadcast(self, key: str, make: Callable[[], T], *, given_up: Callable[[], bool] | None = None) -> T:
        """Returns what process 0 makes; see `Team`."""
        self.check()
        if self.is_first:
            try:
                made = make()
            except Exception as error:
                told = {"error": getattr(error, "strerror", None) or str(error), "kind": _kind(error)}
                if isinstance(error, OSError):
                    told["errno"] = error.errno
                self._say("post", key=key, value=told)
                raise
            self._say("post", key=key, value={"made": made})
            return made
        said = self._awaited(self._posts, key, given_up)
        if "errno" in said:
            raise OSError(said["errno"] or 0, said["error"])
        if "error" in said:
            raise _KINDS.get(said["kind"], RuntimeError)(said["error"])
        found: T = said["made"]
        return found

    def all_gather(self, key: str, value: Any, *, given_up: Callable[[], bool] | None = None) -> list[Any]:
        """Returns the values of all processes; see `Team`."""
        self.check()
        self._say("all", key=key, value=value)
        found: list[Any] = self._awaited(self._alls, key, given_up)
        return found

    def _awaited(self, box: dict[str, Any], key: str, given_up: Callable[[], bool] | None = None) -> Any:
        with self._heard:
            while key not in box and self._ended is None:
                if given_up is not None and given_up():
                    raise ProcessError(f"{key} is given up")
                self._heard.wait(None if given_up is None else _AGAIN_S)
            if key in box:
                return box.pop(key)
        self.check()
        raise AssertionError("the run has ended")

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Ends the run if the block, in which this process waits for the devices of others, takes too long."""
        self._waits_since = time.monotonic()
        try:
            yield
        finally:
            self._waits_since = math.inf

    def pass_on(self, signum: int) -> None:
        """Tells process 0, once, that a signal came here."""
        if not self.is_first and not self._passed_on:
            self._passed_on = True
            self._say("first", signum=signum)

    def signalled(self) -> int | None:
        """Returns the first signal that another process told of."""
        return self._signal

    def report(self, usage: Mapping[str, float]) -> None:
        """Tells process 0 what this process takes of its machine."""
        self._say("first", usage=usage)

    def reported(self) -> dict[int, Mapping[str, float]]:
        """Returns by process what others have told of themselves since the last time."""
        with self._heard:
            found = self._usage
            self._usage = {}
        return found

    def log(self, record: Mapping[str, object]) -> None:
        """Sends a record of this process's log to process 0."""
        self._say("first", **record)


def _kind(error: Exception) -> str:
    """Returns by what name the others raise an error that process 0 met."""
    return next((name for name, one in _KINDS.items() if isinstance(error, one)), "")


def _is_loopback(host: str) -> bool:
    return host in ("localhost", "::1") or host.startswith("127.")

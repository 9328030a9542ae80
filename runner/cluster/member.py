"""A process's connection to the coordinator: broadcast, all_gather, and how it ends together with the others.

A main thread that waits in a collective can't be woken. So if the run ends elsewhere, another thread waits a moment
for it, then records the end and ends the process.
"""

from __future__ import annotations

import itertools
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

from runner.cluster.coordinator import Coordinator
from runner.cluster.launch import family
from runner.cluster.messages import DeniedError, connect, encoded, printable
from runner.cluster.place import Place
from runner.cluster.secret import VARIABLE as SECRET
from runner.cluster.team import Ending, ProcessError, Team
from runner.cluster.timeouts import BEAT_S, MAIN_THREAD_S, RECORD_S, SILENCE_S
from runner.errors import ConfigError, DataError, EngineError, Interrupted, PassingError, TrackingError
from runner.host.secrets import scrub
from runner.host.signals import SIGNALS, StopRequest, signal_of

T = TypeVar("T")
# Between two attempts to connect to process 0, and between two looks at whether a wait is given up.
_RETRY_S = 0.2
# Connections that may wait to be accepted: all processes of a large run may connect at once.
_BACKLOG = 128
# Errors of process 0 that the others raise as the same class, so that all exit with the same code and message; a
# subclass before its base.
_ERRORS = {error.__name__: error for error in (PassingError, DataError, ConfigError, EngineError, TrackingError)}


class Member(Team):
    """A process among others; see `Team`. Others reach it at its address."""

    def __init__(self, place: Place, timeout: float = math.inf) -> None:
        """Does not connect yet; `waiting` may take so many seconds."""
        self.index = place.index
        self.count = place.count
        self.place = place
        self._heard = threading.Condition()
        # Values that process 0 has broadcast, and lists of those that all have given, by key.
        self._values: dict[str, Any] = {}
        self._ended: Mapping[str, Any] | None = None
        self._signal: int | None = None
        # Numbers the calls of `raise_if_requested` and `finish`, whose keys are used once.
        self._calls = itertools.count()
        self._failure = ("", False)  # why, and whether all may fail for that reason
        self._has_left = False
        self._has_begun = False
        self._has_agreed_to_end = False
        self._timeout = timeout
        self._waits_since = math.inf
        self._sending = threading.Lock()
        # Held by the thread that ends this process; the main thread may declare it twice.
        self._leaving = threading.RLock()
        self._on_end: list[Ending] = []
        self.address = ""
        self._coordinator: Coordinator | None = None
        # Replaced by a connected one in `join`.
        self._socket = socket.socket()

    def join(self, agrees: Mapping[str, object], start_timeout: float) -> None:
        """Connects to process 0, and waits until all processes have connected and agree.

        `agrees` are JSON-serializable settings that must be equal in all processes, by name. Others reach this process
        at the address of its connection to process 0.

        A ProcessError says why process 0 or this one can't join, which process is missing, or in what two differ.
        """
        place = self.place
        if self.is_first:
            address = (place.host, place.port)
            try:
                listening = socket.create_server(address, family=family(place.host), backlog=_BACKLOG)
            except OSError as error:
                problem = f"process 0 can't listen: {error.strerror}"
                fix = "set cluster.coordinator to a free port of its machine"
                raise ProcessError(f"{problem}; {fix}") from error
            self._coordinator = Coordinator(listening, place.count, place.token, start_timeout)
        self._socket = self._connected(start_timeout)
        # Process 0 hears its own coordinator unless it is stopped, and then it hears nothing at all.
        if self.is_first:
            self._socket.settimeout(None)
        self.address = self._socket.getsockname()[0]
        agrees = {"cluster.processes": place.count, **agrees}
        about = {"host": platform.node(), "pid": os.getpid(), "agrees": agrees}
        self._send("join", index=place.index, about=about)
        threading.Thread(target=self._listen, daemon=True).start()
        threading.Thread(target=self._beat, daemon=True).start()
        with self._heard:
            self._heard.wait_for(lambda: self._has_begun or self._ended is not None)
        self.check()
        if place.begun is not None:
            # The launcher's; from now on all hear of a failure by themselves.
            os.write(place.begun, b"1")
            os.close(place.begun)

    def _connected(self, start_timeout: float) -> socket.socket:
        place = self.place
        deadline = time.monotonic() + start_timeout
        while True:
            try:
                return connect(place.host, place.port, place.token)
            except DeniedError as error:
                raise ProcessError(
                    f"process {self.index} and the server at {place.host}:{place.port} have different secrets: "
                    "it belongs to another run, or the processes share no secret; set cluster.coordinator to a free "
                    f"port, or {SECRET} to the same secret for all"
                ) from error
            except OSError as error:
                if time.monotonic() > deadline:
                    raise ProcessError(
                        f"process {self.index} could not connect to process 0 at {place.host}:{place.port} within "
                        f"{start_timeout:g} s ({error.strerror or error}); check that process 0 is running and that "
                        "cluster.coordinator is correct"
                    ) from error
            time.sleep(_RETRY_S)

    def _send(self, kind: str, **content: object) -> None:
        line = encoded({"kind": kind, **content})
        # The thread that listens notices a broken connection.
        with self._sending, suppress(OSError):
            self._socket.sendall(line)

    def _beat(self) -> None:
        """Sends signs of life, and ends the run if `waiting` takes too long; runs in a thread."""
        while not self._has_left:
            self._send("beat")
            time.sleep(BEAT_S)
            if time.monotonic() - self._waits_since > self._timeout:
                # Reported once: the next beat must not find the same wait again.
                self._waits_since = math.inf
                why = (
                    f"process {self.index} has waited for the others in a collective for {self._timeout:g} s "
                    "(cluster.timeout): another process is stuck, or takes that long to compile or save"
                )
                self._send("bye", why=why, code=1, own=True, stays=True)

    def _listen(self) -> None:
        """Receives messages until the connection ends; runs in a thread."""
        why = "process 0 disconnected without a message; it was probably killed"
        try:
            with self._socket.makefile("rb") as lines:
                # Of any length: process 0 has proved the secret, and the values of many processes come in one line.
                for line in lines:
                    self._take(json.loads(line))
        except TimeoutError:
            why = f"process 0 has not answered for {SILENCE_S:.0f} s"
        except (OSError, ValueError):
            pass
        if not self._has_left:
            self._end({"why": why, "signum": None, "code": 1})

    def _take(self, said: Mapping[str, Any]) -> None:
        with self._heard:
            match said["kind"]:
                case "begin":
                    self._has_begun = True
                case "post" | "all":
                    self._values[said["key"]] = said["value"]
                case "first":
                    self._signal = self._signal or said["signum"]
            self._heard.notify_all()
        if said["kind"] == "ended":
            self._end(said)
            # Process 0 waits for this, so that all have heard the reason before it exits.
            self._send("bye")

    def _end(self, ended: Mapping[str, Any]) -> None:
        with self._heard:
            if self._ended is not None:
                return
            self._ended = {**ended, "why": printable(ended.get("why", ""))}
            self._heard.notify_all()
        # In a thread of its own, because the one that listens has to answer process 0, see `_take`.
        threading.Thread(target=self._end_too, daemon=True).start()

    def _end_too(self) -> None:
        """Ends this process with the others if its main thread does not in time; runs in a thread."""
        ended = self._ended or {}
        if ended.get("signum") and not self._has_left:
            # The main thread may wait for something that a signal interrupts.
            with suppress(OSError, RuntimeError):
                signal.pthread_kill(threading.main_thread().ident or 0, ended["signum"])
        time.sleep(MAIN_THREAD_S)
        if not self._leaving.acquire(blocking=False):
            # The main thread is ending the process.
            return
        # Without a complete record, as of a tracking server that does not answer.
        timer = threading.Timer(RECORD_S, os._exit, (1,))
        timer.daemon = True
        timer.start()
        why = str(ended.get("why"))
        signum = ended.get("signum")
        for end in reversed(self._on_end):
            with suppress(Exception):
                end(why, signum)
        line = f"error: {scrub(why)}"
        code = int(ended.get("code", 1))
        if signum:
            line = "interrupted"
            code = 128 + signum
        if self._prints:
            with suppress(OSError, ValueError):
                print(line, file=sys.stderr, flush=True)
        self._exit(code)

    @property
    def _prints(self) -> bool:
        """Whether it prints why it ends. The launcher shows all processes, of which process 0 then does."""
        return self.is_first or self.place.source != "local"

    def on_end(self, end: Ending) -> Callable[[], None]:
        """Registers a function for a run that ends elsewhere; see `Team`."""
        self._on_end.append(end)
        return lambda: self._on_end.remove(end)

    def begin_leaving(self) -> None:
        """Declares that the main thread ends this process; see `Team`."""
        if not self._leaving.acquire(blocking=False):
            threading.Event().wait()

    def failed(self, why: str, *, own: bool) -> bool:
        """Stores why this process fails; see `Team`."""
        self._failure = (why, own)
        return self._prints

    def leave(self, code: int) -> NoReturn:
        """Leaves the run and exits at once: the libraries' own exit handlers would wait for the other processes."""
        self.begin_leaving()
        # The others may still be at work. A signal ends the wait for them.
        for one in SIGNALS:
            if signal.getsignal(one) != signal.SIG_IGN:
                signal.signal(one, lambda number, _: self._leave_at_once(number))
        signum = signal_of(code) or None
        why, own = self._failure
        if code and not why:
            why = f"it exits with code {code}"
        if self._ended is None and (code == 0 or self._has_agreed_to_end):
            try:
                self.all_gather("the end", True)
            except (ProcessError, Interrupted) as error:
                # Process 0 has finished all the same.
                if not self.is_first and isinstance(error, ProcessError):
                    code = code or error.code
                elif not self.is_first and isinstance(error, Interrupted):
                    code = code or 128 + error.signum
        if self._ended is None and why and not self._has_agreed_to_end:
            self._send("bye", why=why, signum=signum, code=code, own=own)
        elif self._ended is None:
            self._send("bye")
        self._exit(code)

    def _leave_at_once(self, signum: int) -> None:
        """Leaves because of a signal while the main thread waits for the others.

        It does so in a thread, because the main thread, which runs signal handlers, may hold the lock for sending.
        """

        def go() -> None:
            self._send("bye", why=f"signal {signum}", signum=signum, code=128 + signum)
            self._exit(128 + signum)

        threading.Thread(target=go, daemon=True).start()

    def _exit(self, code: int) -> NoReturn:
        """Exits at once, in process 0 after the others have heard why the run ends."""
        self._has_left = True
        if self._coordinator is not None:
            self._coordinator.say_last_words()
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError, ValueError):
                stream.flush()
        os._exit(code)

    def check(self, within: float = 0.0) -> None:
        """Raises `ProcessError` or `Interrupted` if the run has ended elsewhere, or does within these seconds."""
        with self._heard:
            self._heard.wait_for(lambda: self._ended is not None, timeout=within)
            ended = self._ended
        if ended is None:
            return
        if ended.get("signum"):
            raise Interrupted(int(ended["signum"]))
        raise ProcessError(ended["why"], int(ended["code"]))

    def broadcast(self, key: str, make: Callable[[], T], *, given_up: Callable[[], bool] | None = None) -> T:
        """Returns the value that process 0 computes; see `Team`."""
        self.check()
        if self.is_first:
            return self._broadcast_own(key, make)
        content = self._awaited(key, given_up)
        if "errno" in content:
            raise OSError(content["errno"] or 0, content["error"])
        if "error" in content:
            raise _ERRORS.get(content["kind"], RuntimeError)(content["error"])
        value: T = content["made"]
        return value

    def _broadcast_own(self, key: str, make: Callable[[], T]) -> T:
        """Computes a value and sends it to the others, or the error, which they raise as well."""
        try:
            value = make()
        except Exception as error:
            kind = next((name for name, kind in _ERRORS.items() if isinstance(error, kind)), "")
            content = {"error": getattr(error, "strerror", None) or str(error), "kind": kind}
            if isinstance(error, OSError):
                content["errno"] = error.errno
            self._send("post", key=key, value=content)
            raise
        self._send("post", key=key, value={"made": value})
        return value

    def all_gather(self, key: str, value: Any, *, given_up: Callable[[], bool] | None = None) -> list[Any]:
        """Returns the values of all processes; see `Team`."""
        self.check()
        self._send("all", key=key, value=value)
        values: list[Any] = self._awaited(key, given_up)
        return values

    def _awaited(self, key: str, given_up: Callable[[], bool] | None) -> Any:
        """Waits for the value of a key and removes it; raises as `Team.broadcast` does."""
        with self._heard:
            while key not in self._values and self._ended is None:
                if given_up is not None and given_up():
                    raise ProcessError(f"the wait for {key} was given up")
                # Nobody notifies of a wait that is given up, so that has to be asked again and again.
                self._heard.wait(None if given_up is None else _RETRY_S)
            if key in self._values:
                return self._values.pop(key)
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

    def raise_if_requested(self, stop: StopRequest) -> None:
        """Raises `Interrupted` in all processes if one of them has received a signal; see `Team`."""
        if stop.signum is not None and not self.is_first:
            self._send("first", signum=stop.signum)
        signum = self.broadcast(f"stop {next(self._calls)}", lambda: stop.signum or self._signal)
        if signum is not None:
            self._has_agreed_to_end = True
            raise Interrupted(signum)

    def finish(self) -> None:
        """Waits until all processes have finished their work; see `Team`."""
        self.all_gather(f"done {next(self._calls)}", True)

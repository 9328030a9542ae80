"""The thread that stores records, so that a training step never waits for a server."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import Protocol

from runner.tracking.records import Point, Record
from runner.tracking.secrets import scrub

_FIRST_DELAY_S, _LONGEST_DELAY_S = 0.25, 4.0
_POLL_S = 0.01


class Send(Protocol):
    """Stores a group of records, or raises."""

    def __call__(self, group: list[Record], *, unsure: bool) -> None:
        """Stores a group: either points only, or one other record.

        Args:
          group: what to store.
          unsure: an earlier attempt raised, and part of the group may be stored already.
        """


class Writer:
    """Stores records in the background: points in order and in batches, all else one by one after them.

    A record leaves the queue only once it is stored or refused for good, so none is lost while a server is away.
    """

    def __init__(
        self,
        send: Send,
        *,
        may_pass: Callable[[Exception], bool],
        warn: Callable[[str], None],
        interval_s: float = 2.0,
        batch: int = 1000,
    ) -> None:
        """Starts the thread.

        Args:
          send: called from the thread only.
          may_pass: says of an error of `send` whether trying again may help.
          warn: shows one line to the user.
          interval_s: seconds between two rounds; a call costs the store about as much as 100 points do.
          batch: points that are stored by one call, and that start a round before its time.
        """
        self.rejected: list[Record] = []
        self._send, self._may_pass, self._warn = send, may_pass, warn
        self._interval_s, self._batch = interval_s, batch
        self._points: deque[Point] = deque()
        self._others: deque[Record] = deque()
        self._in_flight: list[Record] = []
        self._taking = threading.Lock()
        self._wake, self._abandoned = threading.Event(), threading.Event()
        self._busy = False
        self._away_since: float | None = None
        self._thread = threading.Thread(target=self._run, name="tracking-writer", daemon=True)
        self._thread.start()

    def add_points(self, points: Iterable[Point]) -> None:
        """Queues points; touches no lock that the thread holds while it stores."""
        self._points.extend(points)
        if len(self._points) >= self._batch:
            self._wake.set()

    def add(self, record: Record) -> None:
        """Queues a record that is not a point."""
        self._others.append(record)

    def flush(self, timeout_s: float) -> bool:
        """Waits until the queue is empty.

        Returns:
          False where `timeout_s` was not enough.
        """
        deadline = time.monotonic() + timeout_s
        while not self._is_idle():
            if time.monotonic() >= deadline or not self._thread.is_alive():
                return False
            self._wake.set()
            time.sleep(_POLL_S)
        return True

    def abandon(self, wait_s: float = 0.5) -> list[Record]:
        """Ends the thread, after the call that it may be in.

        Args:
          wait_s: longest wait for that call.

        Returns:
          What is not known to be stored, in order.
        """
        self._abandoned.set()
        self._wake.set()
        self._thread.join(wait_s)
        with self._taking:
            return [*self._in_flight, *self._points, *self._others]

    def _is_idle(self) -> bool:
        # In this order: a group leaves the queue only while busy is set.
        return not self._points and not self._others and not self._busy

    def _run(self) -> None:
        while not self._abandoned.is_set():
            self._wake.wait(self._interval_s)
            self._wake.clear()
            self._busy = True
            while not self._abandoned.is_set() and (group := self._take()):
                self._deliver(group)
            self._busy = False

    def _take(self) -> list[Record]:
        with self._taking:
            if self._points:
                count = min(self._batch, len(self._points))
                self._in_flight = [self._points.popleft() for _ in range(count)]
            elif self._others:
                self._in_flight = [self._others.popleft()]
            return self._in_flight

    def _deliver(self, group: list[Record]) -> None:
        delay, unsure = _FIRST_DELAY_S, False
        while True:
            try:
                self._send(group, unsure=unsure)
            except Exception as error:  # a thread that dies would lose every later point
                if not self._may_pass(error):
                    self._reject(group, error)
                    break
                self._note_away(error)
            else:
                self._note_back()
                break
            unsure = True
            if self._abandoned.wait(delay):
                return
            delay = min(2 * delay, _LONGEST_DELAY_S)
        with self._taking:
            self._in_flight = []

    def _reject(self, group: list[Record], error: Exception) -> None:
        if not self.rejected:
            self._warn(f"the store refuses {type(group[0]).__name__.lower()} records: {reason(error)}")
        self.rejected.extend(group)

    def _note_away(self, error: Exception) -> None:
        if self._away_since is None:
            self._away_since = time.monotonic()
            self._warn(f"the store is away ({reason(error)}); points are kept and stored when it is back")

    def _note_back(self) -> None:
        if self._away_since is not None:
            self._warn(f"the store is back after {time.monotonic() - self._away_since:.0f} s")
            self._away_since = None


def reason(error: BaseException) -> str:
    """Returns an error's innermost cause in a few words, without secrets."""
    text = " ".join(scrub(str(error)).split())
    for known in (
        "Connection refused",
        "timed out",
        "Name or service not known",
        "Connection reset",
        "No route to host",
    ):
        if known in text:
            return known
    return (text[:160] + "...") if len(text) > 160 else text or type(error).__name__

"""The thread that stores records, so that a training step never waits for a server."""

from __future__ import annotations

import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from runner.tracking.reason import reason
from runner.tracking.records import Artifact, Point, Record

_FIRST_DELAY_S = 0.25
_LONGEST_DELAY_S = 4.0
_POLL_S = 0.01
_SLOWEST_UPLOAD = 1e6  # bytes per second: an upload that is under way may take that much longer
_MOST_OUTAGES = 10  # that are told of: a store that comes and goes all day must not fill a log


class Send(Protocol):
    """Stores a group of records, or raises; see `runner.tracking.send.Sender`."""

    def __call__(self, group: list[Record], *, unsure: bool) -> None:
        """Stores points only, or one other record; `unsure`: an earlier attempt raised."""


@dataclass
class _Lane:
    """Records that are stored one group after another.

    Attributes:
      batch: records that a group holds at most.
      kept: what is said of its records while they can't be stored.
      waiting: what is in no group yet.
      group: what is being stored, until it is stored or refused for good.
      unsure: an attempt to store the group raised.
      delay: seconds until the next attempt after one that raises.
      due: time of the next attempt.
      away_since: time of the first attempt that raised since one did not.
    """

    batch: int
    kept: str
    waiting: deque[Record] = field(default_factory=deque)
    group: list[Record] = field(default_factory=list)
    unsure: bool = False
    delay: float = _FIRST_DELAY_S
    due: float = 0.0
    away_since: float | None = None

    def take(self) -> list[Record]:
        """Returns the group to store now; none where nothing waits, or a pause is not over."""
        if time.monotonic() < self.due:
            return []
        if not self.group:
            self.group = [self.waiting.popleft() for _ in range(min(self.batch, len(self.waiting)))]
        return self.group

    def done(self) -> None:
        """Lets go of the group."""
        self.group = []
        self.unsure = False
        self.delay = _FIRST_DELAY_S
        self.due = 0.0

    def failed(self) -> None:
        """Keeps the group for a later attempt."""
        self.unsure = True
        self.due = time.monotonic() + self.delay
        self.delay = min(2 * self.delay, _LONGEST_DELAY_S)


class Writer:
    """Stores records in the background: points in order and in batches, all else one by one after them.

    A record leaves the queue only once it is stored or refused for good, so none is lost while a server is away or a
    disk is full. Points don't wait for the rest: a picture may have no place where a point still has one.
    """

    def __init__(
        self,
        send: Send,
        *,
        may_pass: Callable[[Exception], bool],
        warn: Callable[[str], None],
        interval_s: float = 2.0,
        batch: int = 1000,
        most_waiting: int = 1_000_000,
    ) -> None:
        """Starts the thread.

        Args:
          send: called from the thread only.
          may_pass: says of an error of `send` whether trying again may help.
          warn: shows one line to the user.
          interval_s: seconds between two rounds; a call costs the store about as much as 100 points do.
          batch: points that are stored by one call, and that start a round before its time.
          most_waiting: points that may wait, at some 150 bytes each; of more, every second one of each metric goes.
        """
        self.rejected: list[Record] = []
        self.left_out = 0  # points, because more than `most_waiting` waited
        self._send = send
        self._may_pass = may_pass
        self._warn = warn
        self._interval_s = interval_s
        self._most_waiting = most_waiting
        self._outages = 0
        self._points = _Lane(batch, "points are kept and stored when it is back")
        self._others = _Lane(1, "tags and files are kept and stored when that is fixed")
        self._moved = time.monotonic()  # when a group last left the queue
        self._taking = threading.Lock()
        self._wake = threading.Event()
        self._abandoned = threading.Event()
        self._thread = threading.Thread(target=self._run, name="tracking-writer", daemon=True)
        self._thread.start()

    def add_points(self, points: Iterable[Point]) -> None:
        """Queues points; touches no lock that the thread holds while it stores."""
        self._points.waiting.extend(points)
        if len(self._points.waiting) >= self._points.batch and not self._points.unsure:
            self._wake.set()

    def add(self, record: Record) -> None:
        """Queues a record that is not a point."""
        self._others.waiting.append(record)

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

    def drain(self, idle_s: float, say_after_s: float = 30.0) -> bool:
        """Waits until the queue is empty, however long that takes, as long as records leave it.

        Args:
          idle_s: gives up when no record has left the queue for so long. An upload that is under way gets a second
            more per MB.
          say_after_s: after so long, a line says that this takes time.

        Returns:
          False where it gave up.
        """
        begun = self._moved = time.monotonic()
        is_said = False
        while not self._is_idle():
            now = time.monotonic()
            if now - self._moved >= idle_s + self._upload_s() or not self._thread.is_alive():
                return False
            if not is_said and now - begun >= say_after_s:
                is_said = True
                self._warn(f"{self._count():,} records are still being stored; Ctrl-C keeps what is left in a file")
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
            return [record for lane in (self._points, self._others) for record in (*lane.group, *lane.waiting)]

    def _is_idle(self) -> bool:
        with self._taking:
            return not any(lane.group or lane.waiting for lane in (self._points, self._others))

    def _count(self) -> int:
        return sum(len(lane.group) + len(lane.waiting) for lane in (self._points, self._others))

    def _upload_s(self) -> float:
        """Returns how many seconds the file that is being uploaded may take."""
        group = self._others.group
        if not group or self._others.unsure or not isinstance(group[0], Artifact):
            return 0.0
        with suppress(OSError):
            return Path(group[0].path).stat().st_size / _SLOWEST_UPLOAD
        return 0.0

    def _run(self) -> None:
        while not self._abandoned.is_set():
            pauses = [lane.due - time.monotonic() for lane in (self._points, self._others) if lane.unsure]
            self._wake.wait(max(0.0, min([self._interval_s, *pauses])))
            self._wake.clear()
            self._thin()
            while not self._abandoned.is_set() and (lane := self._next()) is not None:
                self._deliver(lane)

    def _next(self) -> _Lane | None:
        with self._taking:
            if self._points.take():
                return self._points
            if self._points.unsure:  # the store is away, for all else too
                return None
            return self._others if self._others.take() else None

    def _deliver(self, lane: _Lane) -> None:
        try:
            self._send(lane.group, unsure=lane.unsure)
        except Exception as error:  # a thread that dies would lose every later point
            if self._may_pass(error):
                self._note_away(lane, error)
                lane.failed()
                return
            self._reject(lane.group, error)
        else:
            self._note_back(lane)
        with self._taking:
            lane.done()
        self._moved = time.monotonic()

    def _thin(self) -> None:
        """Bounds the memory of a store that is away for days: curves keep their shape at half the points."""
        waiting = self._points.waiting
        count = len(waiting)
        if count <= self._most_waiting:
            return
        seen: Counter[str] = Counter()
        with self._taking:
            kept: list[Record] = []
            for _ in range(count):
                record = waiting.popleft()
                assert isinstance(record, Point)
                seen[record.key] += 1
                if seen[record.key] % 2:
                    kept.append(record)
            waiting.extendleft(reversed(kept))
        if not self.left_out:
            self._warn(f"{count:,} points wait, which is too many: every second one of each metric is left out")
        self.left_out += count - len(kept)

    def _reject(self, group: list[Record], error: Exception) -> None:
        if not self.rejected:
            self._warn(f"the store refuses {type(group[0]).__name__.lower()} records: {reason(error)}")
        self.rejected.extend(group)

    def _note_away(self, lane: _Lane, error: Exception) -> None:
        if lane.away_since is not None:
            return
        lane.away_since = time.monotonic()
        self._outages += 1
        if self._outages <= _MOST_OUTAGES:
            last = "; it comes and goes, of which no more is said" if self._outages == _MOST_OUTAGES else ""
            self._warn(f"the store is away ({reason(error)}); {lane.kept}{last}")

    def _note_back(self, lane: _Lane) -> None:
        if lane.away_since is not None:
            if self._outages < _MOST_OUTAGES:
                self._warn(f"the store is back after {time.monotonic() - lane.away_since:.0f} s")
            lane.away_since = None

"""Writer of a run's records, so that a training step never waits for a disk or a server.

A thread appends the records to the run's file, and then stores them.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable

from runner.host.lock import HeldError
from runner.tracking.reason import reason
from runner.tracking.records import Point, Record
from runner.tracking.run_file import RunFile
from runner.tracking.send import POINTS_PER_CALL, MlflowWriter, is_retryable

# Seconds until the first retry. It doubles with each failure, so that a short hiccup costs little, and stays below the
# longest delay, so that a server that is back is noticed within seconds.
_FIRST_RETRY_DELAY_S = 0.25
_LONGEST_RETRY_DELAY_S = 4.0
# How often a caller that waits for the thread looks whether it is done.
_POLL_INTERVAL_S = 0.01
# Outages that are reported one by one. A server that fails and recovers all day must not fill a log.
_MAX_REPORTED_OUTAGES = 10
# Most points that wait in memory, at about 150 bytes each. Those beyond are in the file only.
_MAX_WAITING = 1_000_000
_NOTIFY_AFTER_S = 30.0


class _Lane:
    """Records that are stored one batch after another, in order.

    Attributes:
      batch_size: most records in a batch.
      waiting: records that are in no batch yet.
      batch: the batch that is being stored, until it is stored or rejected.
      retry_at: time of the retry.
      is_failing: the last attempt has raised, so the batch may be stored already.
    """

    def __init__(self, batch_size: int) -> None:
        self.batch_size = batch_size
        self.waiting: deque[Record] = deque()
        self.batch: list[Record] = []
        self.retry_at = 0.0
        self.is_failing = False
        self._retry_delay_s = _FIRST_RETRY_DELAY_S

    def fill_batch(self) -> bool:
        """Fills the batch if it is empty; returns whether there is one to store now."""
        if time.monotonic() < self.retry_at:
            return False
        if not self.batch:
            count = min(self.batch_size, len(self.waiting))
            self.batch = [self.waiting.popleft() for _ in range(count)]
        return bool(self.batch)

    def drop_batch(self) -> None:
        """Removes the batch, which is stored or rejected."""
        self.batch = []
        self.is_failing = False
        self._retry_delay_s = _FIRST_RETRY_DELAY_S
        self.retry_at = 0.0

    def schedule_retry(self) -> None:
        """Keeps the batch for a later attempt."""
        self.is_failing = True
        self.retry_at = time.monotonic() + self._retry_delay_s
        self._retry_delay_s = min(2 * self._retry_delay_s, _LONGEST_RETRY_DELAY_S)


class AsyncWriter:
    """Stores records from a thread: points in batches, all else one by one after them.

    A record is in memory until it is stored or rejected, and in the file for good. Points have a lane of their own,
    because a picture may find no space where a point still does.

    Attributes:
      rejected: records that the store rejected for good.
      unsent_points: how many points are in the file only, because too many waited.
      unfiled: records that the file did not accept; those of them that the store has are not lost.
    """

    def __init__(
        self, writer: MlflowWriter, file: RunFile, warn: Callable[[str], None], interval_s: float = 2.0
    ) -> None:
        """Starts the thread, which alone calls the writer, in rounds.

        A call costs the store about as much as 100 points, so a round stores what `interval_s` seconds have brought.
        """
        self.rejected: list[Record] = []
        self.unsent_points = 0
        self.unfiled: list[Record] = []
        self._writer = writer
        self._file = file
        self._warn = warn
        self._interval_s = interval_s
        self._outages = 0
        self._has_warned_of_file = False
        self._added: deque[Record] = deque()
        self._points = _Lane(POINTS_PER_CALL)
        self._others = _Lane(1)
        self._last_progress = time.monotonic()
        # Held while records move between queues, never while they are stored: whoever adds or counts records does not
        # wait for the server.
        self._lock = threading.Lock()
        self._filing = threading.Lock()
        self._wake = threading.Event()
        self._abandoned = threading.Event()
        self._thread = threading.Thread(target=self._run, name="tracking-writer", daemon=True)
        self._thread.start()

    def add(self, records: Iterable[Record]) -> None:
        """Queues records. Takes no lock, so that a training step never waits."""
        self._added.extend(records)
        # A failing store is not asked again before its delay is over, however many points wait.
        if len(self._added) >= self._points.batch_size and not self._points.is_failing:
            self._wake.set()

    def flush(self, limit_s: float, *, while_moving: bool = False) -> bool:
        """Waits until all records are stored; returns False if it gave up after `limit_s` seconds.

        With `while_moving` they are counted from the last time that something was stored.
        """
        started = time.monotonic()
        self._last_progress = started
        is_notified = False
        while count := len(self._remaining()):
            now = time.monotonic()
            since = self._last_progress if while_moving else started
            if now - since >= limit_s or not self._thread.is_alive():
                return False
            if not is_notified and now - started >= _NOTIFY_AFTER_S:
                is_notified = True
                self._warn(f"still storing {count:,} records; after Ctrl-C the rest is in a file")
            self._wake.set()
            time.sleep(_POLL_INTERVAL_S)
        return True

    def abandon(self, wait_s: float = 0.5) -> list[Record]:
        """Ends the thread after its current call, and appends what is left to the file.

        It waits at most `wait_s` seconds for that call. It returns the records that are not known to be stored.
        """
        self._abandoned.set()
        self._wake.set()
        self._thread.join(wait_s)
        self._file_added()
        return self._remaining()

    def file(self, record: Record) -> None:
        """Appends a record to the file that the caller stores itself; after `abandon`."""
        self._append([record], sync=True)

    def _remaining(self) -> list[Record]:
        with self._lock:
            lanes = (self._points, self._others)
            return [*(record for lane in lanes for record in (*lane.batch, *lane.waiting)), *self._added]

    def _run(self) -> None:
        while not self._abandoned.is_set():
            # Until the next round or retry, whichever is earlier.
            now = time.monotonic()
            retries = [lane.retry_at - now for lane in (self._points, self._others) if lane.is_failing]
            self._wake.wait(max(0.0, min([self._interval_s, *retries])))
            self._wake.clear()
            self._file_added()
            while not self._abandoned.is_set():
                lane = self._next_lane()
                if lane is None:
                    break
                self._store_batch(lane)

    def _file_added(self) -> None:
        """Appends the added records to the file, and moves them to their lanes."""
        added: list[Record] = []
        with self._lock:
            # Only what is there by now; the training thread may add more meanwhile.
            for _ in range(len(self._added)):
                record = self._added.popleft()
                added.append(record)
                lane = self._points if isinstance(record, Point) else self._others
                lane.waiting.append(record)
        self._append(added)
        if len(self._points.waiting) > _MAX_WAITING and not self.unfiled:
            with self._lock:
                if not self.unsent_points:
                    self._warn(f"more than {_MAX_WAITING:,} points wait for the store; the rest is only in a file")
                self.unsent_points += len(self._points.waiting)
                self._points.waiting.clear()

    def _append(self, records: list[Record], *, sync: bool = False) -> None:
        with self._filing:
            self.unfiled += records
            if not self.unfiled:
                return
            try:
                self._file.append(self.unfiled, sync=sync)
                self.unfiled = []
            except (OSError, HeldError) as error:
                if not self._has_warned_of_file:
                    self._has_warned_of_file = True
                    self._warn(f"could not write {self._file.path}: {reason(error)}; training continues")

    def _next_lane(self) -> _Lane | None:
        """Returns the lane whose batch is stored next; None if there is nothing to store now."""
        with self._lock:
            if self._points.fill_batch():
                return self._points
            # If the store is unavailable for points, other records would fail too.
            return self._others if not self._points.is_failing and self._others.fill_batch() else None

    def _store_batch(self, lane: _Lane) -> None:
        try:
            self._writer.write(lane.batch, is_retry=lane.is_failing)
        # Whatever the client raises: a thread that ends here would lose every later point.
        except Exception as error:
            if is_retryable(error):
                if not lane.is_failing:
                    self._report_outage("metrics" if lane is self._points else "tags and files", error)
                lane.schedule_retry()
                return
            if not self.rejected:
                self._warn(f"the store rejects {type(lane.batch[0]).__name__.lower()} records: {reason(error)}")
            self.rejected.extend(lane.batch)
        else:
            if lane.is_failing and self._outages < _MAX_REPORTED_OUTAGES:
                self._warn("store available again")
        with self._lock:
            lane.drop_batch()
        self._last_progress = time.monotonic()

    def _report_outage(self, what: str, error: Exception) -> None:
        self._outages += 1
        if self._outages <= _MAX_REPORTED_OUTAGES:
            line = f"store unavailable ({reason(error)}); {what} are stored when it is back"
            if self._outages == _MAX_REPORTED_OUTAGES:
                line += ". Further outages are not reported"
            self._warn(line)

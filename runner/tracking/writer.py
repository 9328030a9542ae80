"""Writer of a run's records, so that a training step never waits for a disk or a server.

A thread appends the records to the run's file, and then stores them.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from runner.host.lock import HeldError
from runner.tracking.reason import reason
from runner.tracking.records import Artifact, Point, Record
from runner.tracking.run_file import RunFile
from runner.tracking.send import POINTS_PER_CALL, MlflowWriter, is_retryable

# Seconds until the first retry. It doubles with each failure, so that a short hiccup costs little, and stays below the
# longest delay, so that a server that is back is noticed within seconds.
_FIRST_RETRY_DELAY_S = 0.25
_LONGEST_RETRY_DELAY_S = 4.0
# How often a caller that waits for the thread looks whether it is done.
_POLL_INTERVAL_S = 0.01
# Bytes per second of the slowest upload that is still waited for: an upload in progress extends the wait accordingly.
_SLOWEST_UPLOAD = 1e6
# Outages that are reported one by one. A server that fails and recovers all day must not fill a log.
_MAX_REPORTED_OUTAGES = 10
# Most points that wait in memory, at about 150 bytes each. Those beyond are in the file only.
_MAX_WAITING = 1_000_000
_NOTIFY_AFTER_S = 30.0


@dataclass
class _Lane:
    """Records that are stored one batch after another, in order.

    Attributes:
      batch_size: most records in a batch.
      waiting: records that are in no batch yet.
      batch: the batch that is being stored, until it is stored or rejected.
      is_retry: an attempt to store the batch has raised.
      retry_delay_s: seconds between the next failure and the retry.
      retry_at: time of the retry; 0: at once.
      failing_since: time of the first failure since the last success; null: no outage.
    """

    batch_size: int
    waiting: deque[Record] = field(default_factory=deque)
    batch: list[Record] = field(default_factory=list)
    is_retry: bool = False
    retry_delay_s: float = _FIRST_RETRY_DELAY_S
    retry_at: float = 0.0
    failing_since: float | None = None

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
        self.is_retry = False
        self.retry_delay_s = _FIRST_RETRY_DELAY_S
        self.retry_at = 0.0

    def schedule_retry(self) -> None:
        """Keeps the batch for a later attempt."""
        self.is_retry = True
        self.retry_at = time.monotonic() + self.retry_delay_s
        self.retry_delay_s = min(2 * self.retry_delay_s, _LONGEST_RETRY_DELAY_S)


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
        """Starts the thread.

        Args:
          writer: stores the records; called from the thread only.
          file: of the run.
          warn: shows one line to the user.
          interval_s: seconds between two rounds. A call costs the store about as much as 100 points do.
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
        if len(self._added) >= self._points.batch_size and not self._points.is_retry:
            self._wake.set()

    def flush(self, limit_s: float, *, while_moving: bool = False) -> bool:
        """Waits until all records are stored.

        Args:
          limit_s: longest wait.
          while_moving: counts it from the last time that something was stored. An upload in progress gets one more
            second per MB.

        Returns:
          False if it gave up.
        """
        started = time.monotonic()
        self._last_progress = started
        is_notified = False
        while count := len(self._remaining()):
            now = time.monotonic()
            since = started
            if while_moving:
                since = self._last_progress + self._upload_allowance_s()
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

        Args:
          wait_s: longest wait for that call.

        Returns:
          The records that are not known to be stored, in order.
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
        remaining: list[Record] = []
        with self._lock:
            for lane in (self._points, self._others):
                remaining += [*lane.batch, *lane.waiting]
            return [*remaining, *self._added]

    def _upload_allowance_s(self) -> float:
        """Returns how many seconds the upload in progress may take, by its size."""
        batch = self._others.batch
        if not batch or self._others.is_retry or not isinstance(batch[0], Artifact):
            return 0.0
        with suppress(OSError):
            return Path(batch[0].path).stat().st_size / _SLOWEST_UPLOAD
        return 0.0

    def _run(self) -> None:
        while not self._abandoned.is_set():
            self._wake.wait(self._pause_s())
            self._wake.clear()
            self._file_added()
            while not self._abandoned.is_set():
                lane = self._next_lane()
                if lane is None:
                    break
                self._store_batch(lane)

    def _pause_s(self) -> float:
        """Returns the seconds until the next round or retry, whichever is earlier."""
        pause = self._interval_s
        for lane in (self._points, self._others):
            if lane.is_retry:
                pause = min(pause, lane.retry_at - time.monotonic())
        return max(0.0, pause)

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
            if self._points.is_retry:
                # The store is unavailable, so other records would fail too.
                return None
            return self._others if self._others.fill_batch() else None

    def _store_batch(self, lane: _Lane) -> None:
        try:
            self._writer.write(lane.batch, is_retry=lane.is_retry)
        # Whatever the client raises: a thread that ends here would lose every later point.
        except Exception as error:
            if is_retryable(error):
                self._report_outage(lane, error)
                lane.schedule_retry()
                return
            self._reject(lane.batch, error)
        else:
            self._report_recovery(lane)
        with self._lock:
            lane.drop_batch()
        self._last_progress = time.monotonic()

    def _reject(self, batch: list[Record], error: Exception) -> None:
        if not self.rejected:
            kind = type(batch[0]).__name__.lower()
            self._warn(f"the store rejects {kind} records: {reason(error)}")
        self.rejected.extend(batch)

    def _report_outage(self, lane: _Lane, error: Exception) -> None:
        if lane.failing_since is not None:
            return
        lane.failing_since = time.monotonic()
        self._outages += 1
        if self._outages > _MAX_REPORTED_OUTAGES:
            return
        what = "metrics" if lane is self._points else "tags and files"
        line = f"store unavailable ({reason(error)}); {what} are stored when it is back"
        if self._outages == _MAX_REPORTED_OUTAGES:
            line += f". This was outage {self._outages}; further ones are not reported"
        self._warn(line)

    def _report_recovery(self, lane: _Lane) -> None:
        if lane.failing_since is None:
            return
        if self._outages < _MAX_REPORTED_OUTAGES:
            self._warn(f"store available again after {time.monotonic() - lane.failing_since:.0f} s")
        lane.failing_since = None

"""Asynchronous writer, so that a training step never waits for a server.

A thread stores the buffered records.
"""

from __future__ import annotations

import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from runner.tracking.reason import reason
from runner.tracking.records import Artifact, Point, Record

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


class RecordWriter(Protocol):
    """Stores records; see `runner.tracking.send.MlflowWriter`."""

    def write(self, records: Sequence[Record], *, is_retry: bool) -> None:
        """Stores points only, or one record of another kind, and waits for the store.

        Args:
          records: what to store.
          is_retry: an earlier attempt raised, so some of the records may be stored already.

        Raises:
          Exception: the records are not stored, or not all of them.
        """


@dataclass
class _Buffer:
    """Records that are stored one batch after another, in order.

    Attributes:
      batch_size: most records in a batch.
      outage_note: what happens to the records while they can't be stored, for the user.
      waiting: records that are in no batch yet.
      batch: the batch that is being stored, until it is stored or rejected.
      is_retry: an attempt to store the batch has raised.
      retry_delay_s: seconds between the next failure and the retry.
      retry_at: time of the retry; 0: at once.
      failing_since: time of the first failure since the last success; null: no outage.
    """

    batch_size: int
    outage_note: str
    waiting: deque[Record] = field(default_factory=deque)
    batch: list[Record] = field(default_factory=list)
    is_retry: bool = False
    retry_delay_s: float = _FIRST_RETRY_DELAY_S
    retry_at: float = 0.0
    failing_since: float | None = None

    def __len__(self) -> int:
        return len(self.batch) + len(self.waiting)

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
    """Stores records through another writer, from a thread.

    Points are stored in batches, all else one by one after them.

    A record leaves its buffer only when it is stored or rejected, so none is lost while a server is unavailable or a
    disk is full. Points have a buffer of their own, because a picture may find no space where a point still does.

    Attributes:
      rejected: records that the store rejected for good.
      dropped_points: how many points were dropped because the buffer was full.
    """

    def __init__(
        self,
        writer: RecordWriter,
        *,
        is_retryable: Callable[[Exception], bool],
        warn: Callable[[str], None],
        interval_s: float = 2.0,
        batch_size: int = 1000,
        max_buffered: int = 1_000_000,
    ) -> None:
        """Starts the thread.

        Args:
          writer: stores the records; called from the thread only.
          is_retryable: returns whether storing the same records later may work, by the error that the writer raised.
          warn: shows one line to the user.
          interval_s: seconds between two rounds. A call costs the store about as much as 100 points do.
          batch_size: most points per call; so many waiting points also start a round before its time.
          max_buffered: most points that may wait, at about 150 bytes each; beyond it, every second one of each metric
            is dropped.
        """
        self.rejected: list[Record] = []
        self.dropped_points = 0
        self._writer = writer
        self._is_retryable = is_retryable
        self._warn = warn
        self._interval_s = interval_s
        self._max_buffered = max_buffered
        self._outages = 0
        self._points = _Buffer(batch_size, "metrics are buffered, and stored when it is back")
        self._others = _Buffer(1, "tags and files are buffered, and stored when it is back")
        self._last_progress = time.monotonic()
        # Held while records move between a buffer and its batch, never while they are stored: whoever adds or counts
        # records does not wait for the server.
        self._batch_lock = threading.Lock()
        self._wake = threading.Event()
        self._abandoned = threading.Event()
        self._thread = threading.Thread(target=self._run, name="tracking-writer", daemon=True)
        self._thread.start()

    def add_points(self, points: Iterable[Point]) -> None:
        """Queues points. Takes no lock, so that a training step never waits."""
        self._points.waiting.extend(points)
        # A failing store is not asked again before its delay is over, however many points wait.
        if len(self._points.waiting) >= self._points.batch_size and not self._points.is_retry:
            self._wake.set()

    def add(self, record: Record) -> None:
        """Queues a record that is not a point."""
        self._others.waiting.append(record)

    def flush(self, timeout_s: float) -> bool:
        """Waits until all records are stored.

        Returns:
          False if `timeout_s` was not enough.
        """
        deadline = time.monotonic() + timeout_s
        while not self._is_empty():
            if time.monotonic() >= deadline or not self._thread.is_alive():
                return False
            self._wake.set()
            time.sleep(_POLL_INTERVAL_S)
        return True

    def drain(self, idle_s: float, notify_after_s: float = 30.0) -> bool:
        """Waits until all records are stored, as long as there is progress.

        Args:
          idle_s: gives up if nothing has been stored for so long. An upload in progress gets one more second per MB.
          notify_after_s: prints a line after so many seconds.

        Returns:
          False if it gave up.
        """
        started = time.monotonic()
        self._last_progress = started
        is_notified = False
        while not self._is_empty():
            now = time.monotonic()
            is_stalled = now - self._last_progress >= idle_s + self._upload_allowance_s()
            if is_stalled or not self._thread.is_alive():
                return False
            if not is_notified and now - started >= notify_after_s:
                is_notified = True
                count = len(self._points) + len(self._others)
                self._warn(f"still storing {count:,} records; Ctrl-C saves the rest in a file")
            self._wake.set()
            time.sleep(_POLL_INTERVAL_S)
        return True

    def abandon(self, wait_s: float = 0.5) -> list[Record]:
        """Ends the thread after its current call.

        Args:
          wait_s: longest wait for that call.

        Returns:
          The records that are not known to be stored, in order.
        """
        self._abandoned.set()
        self._wake.set()
        self._thread.join(wait_s)
        with self._batch_lock:
            points = [*self._points.batch, *self._points.waiting]
            others = [*self._others.batch, *self._others.waiting]
        return points + others

    def _is_empty(self) -> bool:
        with self._batch_lock:
            return len(self._points) == 0 and len(self._others) == 0

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
            self._drop_excess_points()
            while not self._abandoned.is_set():
                buffer = self._next_buffer()
                if buffer is None:
                    break
                self._store_batch(buffer)

    def _pause_s(self) -> float:
        """Returns the seconds until the next round or retry, whichever is earlier."""
        pause = self._interval_s
        for buffer in (self._points, self._others):
            if buffer.is_retry:
                pause = min(pause, buffer.retry_at - time.monotonic())
        return max(0.0, pause)

    def _next_buffer(self) -> _Buffer | None:
        """Returns the buffer whose batch is stored next.

        Returns None if there is nothing to store now.
        """
        with self._batch_lock:
            if self._points.fill_batch():
                return self._points
            if self._points.is_retry:
                # The store is unavailable, so other records would fail too.
                return None
            return self._others if self._others.fill_batch() else None

    def _store_batch(self, buffer: _Buffer) -> None:
        try:
            self._writer.write(buffer.batch, is_retry=buffer.is_retry)
        # Whatever the client raises: a thread that ends here would lose every later point.
        except Exception as error:
            if self._is_retryable(error):
                self._report_outage(buffer, error)
                buffer.schedule_retry()
                return
            self._reject(buffer.batch, error)
        else:
            self._report_recovery(buffer)
        with self._batch_lock:
            buffer.drop_batch()
        self._last_progress = time.monotonic()

    def _drop_excess_points(self) -> None:
        """Bounds the memory of an outage that lasts for days.

        Curves keep their shape with half of the points.
        """
        waiting = self._points.waiting
        # Only the points that wait by now; the training thread may add more meanwhile.
        count = len(waiting)
        if count <= self._max_buffered:
            return
        seen: Counter[str] = Counter()
        kept: list[Record] = []
        with self._batch_lock:
            for _ in range(count):
                record = waiting.popleft()
                assert isinstance(record, Point)
                seen[record.key] += 1
                if seen[record.key] % 2:
                    kept.append(record)
            waiting.extendleft(reversed(kept))
        if not self.dropped_points:
            self._warn(f"metric buffer is full ({count:,} points); dropping every second point of each metric")
        self.dropped_points += count - len(kept)

    def _reject(self, batch: list[Record], error: Exception) -> None:
        if not self.rejected:
            kind = type(batch[0]).__name__.lower()
            self._warn(f"the store rejects {kind} records: {reason(error)}")
        self.rejected.extend(batch)

    def _report_outage(self, buffer: _Buffer, error: Exception) -> None:
        if buffer.failing_since is not None:
            return
        buffer.failing_since = time.monotonic()
        self._outages += 1
        if self._outages > _MAX_REPORTED_OUTAGES:
            return
        line = f"store unavailable ({reason(error)}); {buffer.outage_note}"
        if self._outages == _MAX_REPORTED_OUTAGES:
            line += f". This was outage {self._outages}; further ones are not reported"
        self._warn(line)

    def _report_recovery(self, buffer: _Buffer) -> None:
        if buffer.failing_since is None:
            return
        if self._outages < _MAX_REPORTED_OUTAGES:
            self._warn(f"store available again after {time.monotonic() - buffer.failing_since:.0f} s")
        buffer.failing_since = None

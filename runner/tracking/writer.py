# ruff: noqa: D102 - the tracker overrides what Tracker documents
"""Writer of a run's records, so that a training step never waits for a disk or a server.

A thread appends the records to the run's file, and then stores them.
"""

from __future__ import annotations

import atexit
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Protocol

from runner.errors import Interrupted
from runner.host.late import late
from runner.host.lock import HeldError
from runner.host.signals import current
from runner.tracking.base import Status, Tracker
from runner.tracking.mlflow_setup import reason, warn
from runner.tracking.records import POINTS_PER_CALL, Point, Record
from runner.tracking.run_file import RunFile

if TYPE_CHECKING:
    from runner.tracking import send
else:
    send = late("runner.tracking.send")  # imports MLflow

# How often a caller that waits for the thread looks whether it is done.
_POLL_INTERVAL_S = 0.01
# Stores a batch of points, or one record of another kind, as `send.write` does.
Write = Callable[[Sequence[Record]], None]

# For the remaining records if this process is about to be ended from outside. The whole record of such an end has 25 s
# (`RECORD_S` in processes/timeouts.py), in which the status and the file must fit too.
_HASTE_S = 15.0


class Writer(Protocol):
    """A place beside MLflow's store, which `line` names for a person. One that raises gets no more records."""

    line: str

    def write(self, records: Sequence[Record]) -> None:
        """Takes records, each once and in order; it must not wait for a network."""

    def close(self, status: Status) -> None:
        """Ends the run's record."""


class AsyncWriter:
    """Stores records from a thread: points in batches, all else one by one after them.

    A record is in memory (a point takes about 150 bytes) until it is stored or rejected, and in the file for good.
    Points come first, because a picture may find no space where a point still does.

    Attributes:
      rejected: how many records the store rejected for good.
      unfiled: records that the file did not accept; those of them that the store has are not lost.
    """

    def __init__(
        self,
        write: Write | None,
        file: RunFile | None,
        warn: Callable[[str], None],
        interval_s: float = 2.0,
        writers: Sequence[Writer] = (),
    ) -> None:
        """Starts the thread, which alone calls `write`, in rounds of `interval_s` seconds.

        Beside the file, `writers` get each record once. Without a store (`write` and `file` are None), they alone do.
        A call costs the store about as much as 100 points, so a round stores what these seconds have brought. A store
        that failed is asked again in the next round.
        """
        self.rejected = 0
        self.unfiled: list[Record] = []
        self._write = write
        self._file = file
        self._writers = list(writers)
        self._warn = warn
        self._interval_s = interval_s
        self._added: deque[Record] = deque()
        self._points: deque[Record] = deque()
        self._others: deque[Record] = deque()
        self._is_available = True
        self._last_progress = time.monotonic()
        # Held while records move between queues and to the file, never while they are stored.
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._abandoned = threading.Event()
        self._thread = threading.Thread(target=self._run, name="tracking-writer", daemon=True)
        self._thread.start()

    def add(self, records: Iterable[Record]) -> None:
        """Queues records. Takes no lock, so that a training step never waits."""
        self._added.extend(records)
        # A failing store is not asked again before the next round, however many points wait.
        if len(self._added) >= POINTS_PER_CALL and self._is_available:
            self._wake.set()

    def flush(self, limit_s: float, *, while_moving: bool = False) -> bool:
        """Waits until all records are stored; returns False if it gave up after `limit_s` seconds.

        With `while_moving` they are counted from the last time that something was stored.
        """
        started = time.monotonic()
        self._last_progress = started
        while self._remaining():
            since = self._last_progress if while_moving else started
            if time.monotonic() - since >= limit_s or not self._thread.is_alive():
                return False
            if self._is_available:
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
        with self._lock:
            self._append([record], sync=True)

    def _remaining(self) -> list[Record]:
        with self._lock:
            return [*self._points, *self._others, *self._added]

    def _run(self) -> None:
        while not self._abandoned.is_set():
            self._wake.wait(self._interval_s)
            self._wake.clear()
            self._file_added()
            # If the store is unavailable for points, other records would fail too.
            is_stored = self._store(self._points, POINTS_PER_CALL) and self._store(self._others, 1)
            if is_stored and not self._is_available:
                self._is_available = True
                self._warn("store available again")

    def _file_added(self) -> None:
        """Appends the added records to the file, and moves them to their queues."""
        with self._lock:
            # Only what is there by now; the training thread may add more meanwhile.
            added = [self._added.popleft() for _ in range(len(self._added))]
            self._append(added)
            if added:
                self._pass_on(added)
            if self._write is None:
                return
            for record in added:
                if isinstance(record, Point):
                    self._points.append(record)
                else:
                    self._others.append(record)

    def _pass_on(self, records: list[Record]) -> None:
        for writer in list(self._writers):
            try:
                writer.write(records)
            # Whatever the library raises, training and the other writers continue.
            except Exception as error:
                self._writers.remove(writer)
                self._warn(f"{writer.line}: failed, and gets no more records: {reason(error)}")

    def _append(self, records: list[Record], *, sync: bool = False) -> None:
        if self._file is None:
            return
        had_failed = bool(self.unfiled)
        self.unfiled += records
        if not self.unfiled:
            return
        try:
            self._file.append(self.unfiled, sync=sync)
            self.unfiled = []
        except (OSError, HeldError) as error:
            if not had_failed:
                self._warn(f"could not write {self._file.path}: {reason(error)}; training continues")

    def _store(self, queue: deque[Record], batch_size: int) -> bool:
        """Stores what waits in a queue; returns whether that is all, or the store failed, so that the rest stays."""
        while self._write and queue and not self._abandoned.is_set():
            batch = list(islice(queue, batch_size))
            try:
                self._write(batch)
            # Whatever the client raises: a thread that ends here would lose every later point.
            except Exception as error:
                if send.is_retryable(error):
                    self._note_failure(error)
                    return False
                if not self.rejected:
                    self._warn(f"the store rejects {type(batch[0]).__name__.lower()} records: {reason(error)}")
                self.rejected += len(batch)
            with self._lock:
                for _ in batch:
                    queue.popleft()
            self._last_progress = time.monotonic()
        return not queue

    def _note_failure(self, error: Exception) -> None:
        if self._is_available:
            self._is_available = False
            self._warn(f"store unavailable ({reason(error)}); what waits is stored when it is back")


class QueuedTracker(Tracker):
    """Records one run through a background thread; see `Tracker` for its methods."""

    def __init__(self, writers: Sequence[Writer], finish_timeout_s: float, queue: AsyncWriter | None = None) -> None:
        """Starts the thread, unless it is given; `finish` gives up if a store has accepted nothing for so long."""
        self._writer = queue or AsyncWriter(None, None, warn, writers=writers)
        self._writers = writers
        self._finish_timeout_s = finish_timeout_s
        self._is_finished = False
        # A program that ends without calling `finish` has failed.
        atexit.register(self.finish, "FAILED")

    def _add(self, records: Sequence[Record]) -> None:
        self._writer.add(records)

    def describe(self) -> list[str]:
        return [writer.line for writer in self._writers]

    def finish(self, status: Status, *, in_haste: bool = False) -> bool:
        """Stores the remaining records and the status; see `Tracker`.

        An interrupt ends the wait: the rest is saved in the file, and the status is KILLED.
        """
        if self._is_finished:
            return True
        self._is_finished = True
        atexit.unregister(self.finish)
        try:
            limit = min(self._finish_timeout_s, _HASTE_S) if in_haste else self._finish_timeout_s
            # While somebody waits for the end (a scheduler, a person, another process) the limit is of the whole wait.
            self._writer.flush(limit, while_moving=not in_haste and status != "KILLED")
        except (Interrupted, KeyboardInterrupt):
            status = "KILLED"
            raise
        finally:
            # Another signal must not lose what is recorded here.
            with current().deferring():
                is_kept = self._end(status, self._writer.abandon())
                for writer in self._writers:
                    try:
                        writer.close(status)
                    # The run has ended as it has.
                    except Exception as error:
                        warn(f"{writer.line}: could not be closed: {reason(error)}")
        return is_kept

    def _end(self, status: Status, remaining: list[Record]) -> bool:  # noqa: ARG002 - the one with a store needs them
        """Records the status in a store; returns whether nothing is lost."""
        return True

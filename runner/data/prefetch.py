"""Prefetching: prepares input ahead of its use, in a background thread."""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Callable, Iterable, Iterator
from types import TracebackType
from typing import Generic, Self, TypeVar

Item = TypeVar("Item")
Placed = TypeVar("Placed")

# The thread can't be woken from a full queue, so it checks this often whether it was stopped. It is the longest that
# `close` waits for an idle thread; ten wake-ups per second cost nothing.
_POLL_SECONDS = 0.1


class Prefetcher(Generic[Item, Placed]):
    """Iterates over `place(item)` of each item, computed by a thread up to `depth` ahead.

    The thread starts with the `with` block, or earlier with `start`. It ends with the items, with an exception, with
    the block or with `close`. An exception of the items or of `place` is raised in the loop, in place of the item.

    >>> with Prefetcher(range(3), place=str, depth=2) as ready:
    ...     list(ready)
    ['0', '1', '2']
    """

    def __init__(self, items: Iterable[Item], place: Callable[[Item], Placed], depth: int = 2) -> None:
        """Prepares; draws no item yet."""
        self._items = items
        self._place = place
        # An item comes wrapped in a tuple, so that it can't be mistaken for the end (None) or for an exception.
        self._ready: queue.Queue[tuple[Placed] | BaseException | None] = queue.Queue(depth)
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._work, name="prefetch", daemon=True)

    @property
    def is_closed(self) -> bool:
        """True after a call of `close`."""
        return self._stopped.is_set()

    def start(self) -> Self:
        """Starts the thread, once; the caller must call `close`."""
        if self._thread.ident is None:
            self._thread.start()
        return self

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Ends the thread and drops prepared items."""
        self._stopped.set()
        if self._thread.ident is not None:
            self._thread.join()
        with contextlib.suppress(queue.Empty):
            while True:
                self._ready.get_nowait()
        # Ends a loop that is still running outside the block.
        self._ready.put(None)

    def __iter__(self) -> Iterator[Placed]:
        while True:
            ready = self._ready.get()
            if ready is None:
                # Put back, so that the next call ends too instead of waiting forever.
                self._ready.put(None)
                return
            if isinstance(ready, BaseException):
                self._ready.put(None)
                raise ready
            yield ready[0]

    def _work(self) -> None:
        end: BaseException | None = None
        try:
            for item in self._items:
                if self._stopped.is_set():
                    return
                was_queued = self._put((self._place(item),))
                if not was_queued:
                    return
        except BaseException as error:  # raised again in the consuming thread
            end = error
        self._put(end)

    def _put(self, ready: tuple[Placed] | BaseException | None) -> bool:
        """Queues an item; returns False if the prefetcher was stopped first."""
        while not self._stopped.is_set():
            try:
                self._ready.put(ready, timeout=_POLL_SECONDS)
            except queue.Full:
                continue
            return True
        return False

"""Makes input ready ahead of its use, in a thread."""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Callable, Iterable, Iterator
from types import TracebackType
from typing import Generic, Self, TypeVar

Item = TypeVar("Item")
Placed = TypeVar("Placed")

_POLL_SECONDS = 0.1


class Prefetcher(Generic[Item, Placed]):
    """Iterates over `place(item)` of each item, made in a background thread up to `depth` ahead.

    The thread starts with the block, or before it with `start`, and ends with the items, with an exception, with the
    block or with `close`. An exception of the items or of `place` is raised where the loop would have got the item.

    Example:
      >>> with Prefetcher(range(3), place=str, depth=2) as ready:
      ...     list(ready)
      ['0', '1', '2']
    """

    def __init__(self, items: Iterable[Item], place: Callable[[Item], Placed], depth: int = 2) -> None:
        """Prepares; no item is drawn yet.

        Args:
          items: what to draw from, in the thread.
          place: applied in the thread, such as a copy to the devices.
          depth: items made ahead, at least 1.

        Raises:
          ValueError: `depth` is below 1.
        """
        if depth < 1:
            raise ValueError(f"dataset.prefetch={depth}: at least 1 is allowed")
        self._items = items
        self._place = place
        self._ready: queue.Queue[tuple[Placed] | BaseException | None] = queue.Queue(depth)
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._work, name="prefetch", daemon=True)

    @property
    def is_closed(self) -> bool:
        """Whether nobody takes what is made any more."""
        return self._stopped.is_set()

    def start(self) -> Self:
        """Starts the thread, once; whoever calls this closes what he got."""
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
        """Ends the thread, and throws away what it made that nobody took."""
        self._stopped.set()
        if self._thread.ident is not None:
            self._thread.join()
        with contextlib.suppress(queue.Empty):
            while True:
                self._ready.get_nowait()
        self._ready.put(None)  # a loop that goes on outside the block ends

    def __iter__(self) -> Iterator[Placed]:
        while True:
            ready = self._ready.get()
            if ready is None:
                self._ready.put(None)  # the end stays the end when asked again
                return
            if isinstance(ready, BaseException):
                self._ready.put(None)
                raise ready
            yield ready[0]

    def _work(self) -> None:
        end: BaseException | None = None
        try:
            for item in self._items:
                if self._stopped.is_set() or not self._hand((self._place(item),)):
                    return
        except BaseException as error:  # carried over to the thread that consumes
            end = error
        self._hand(end)

    def _hand(self, ready: tuple[Placed] | BaseException | None) -> bool:
        while not self._stopped.is_set():
            try:
                self._ready.put(ready, timeout=_POLL_SECONDS)
            except queue.Full:
                continue
            return True
        return False

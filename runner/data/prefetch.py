"""Prefetching: prepares input ahead of its use, in a background thread."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Generic, Self, TypeVar

Item = TypeVar("Item")
Placed = TypeVar("Placed")


class Prefetcher(Generic[Item, Placed]):
    """Iterates over `place(item)` of each item, computed by a thread up to `depth` ahead, and the one in hand.

    The thread lives as long as the `with` block. An exception of the items or of `place` is raised in the loop, in
    place of the item.

    >>> with Prefetcher(range(3), place=str, depth=2) as ready:
    ...     list(ready)
    ['0', '1', '2']
    """

    def __init__(self, items: Iterable[Item], place: Callable[[Item], Placed], depth: int = 2) -> None:
        self._items = iter(items)
        self._place = place
        self._depth = depth
        # An item comes wrapped in a tuple, so that it can't be mistaken for the end, None.
        self._ready: deque[Future[tuple[Placed] | None]] = deque()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="prefetch")
        self.is_closed = False

    def __enter__(self) -> Self:
        for _ in range(self._depth + 1):
            self._ready.append(self._thread.submit(self._next))
        return self

    def __exit__(self, *error: object) -> None:
        # First: the item in hand may wait for other processes until this is set.
        self.is_closed = True
        self._thread.shutdown(cancel_futures=True)
        self._ready.clear()

    def __iter__(self) -> Iterator[Placed]:
        while self._ready:
            ready = self._ready.popleft().result()
            if ready is None:
                return
            self._ready.append(self._thread.submit(self._next))
            yield ready[0]

    def _next(self) -> tuple[Placed] | None:
        for item in self._items:
            return (self._place(item),)
        return None

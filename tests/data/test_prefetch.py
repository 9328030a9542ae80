import itertools
import threading
import time
from collections.abc import Iterator

import pytest

from runner.data.prefetch import Prefetcher


def test_items_come_placed_and_in_order_from_another_thread() -> None:
    threads = set()

    def place(item: int) -> int:
        threads.add(threading.current_thread())
        return item * 10

    with Prefetcher(range(50), place, depth=3) as ready:
        assert list(ready) == [item * 10 for item in range(50)]
        assert list(ready) == []
    assert threading.current_thread() not in threads
    assert not any(thread.is_alive() for thread in threads)


def test_an_exception_of_the_items_is_raised_after_the_items_before_it() -> None:
    def items() -> Iterator[int]:
        yield 1
        raise OSError("the disk is gone")

    got = []
    with Prefetcher(items(), place=int) as ready, pytest.raises(OSError, match="the disk is gone"):
        got.extend(ready)
    assert got == [1]


def test_no_more_than_depth_items_and_the_one_in_hand_are_made_ahead() -> None:
    made = []
    with Prefetcher(itertools.count(), place=made.append, depth=2) as ready:
        next(iter(ready))
        time.sleep(0.3)
        assert len(made) <= 1 + 2 + 1


def test_leaving_an_endless_loop_ends_the_thread_at_once() -> None:
    with Prefetcher(itertools.count(), place=int, depth=2) as ready:
        assert next(iter(ready)) == 0
        start = time.monotonic()
    assert time.monotonic() - start < 1
    assert not any(thread.name.startswith("prefetch") for thread in threading.enumerate())

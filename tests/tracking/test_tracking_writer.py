import re
import threading
import time

import pytest

from runner.tracking.records import Artifact, Point, Tag
from runner.tracking.writer import AsyncWriter


class Store:
    """Keeps what it is sent; raises as long as `error` is set, after storing where `stores_first`."""

    def __init__(self):
        self.kept, self.calls, self.threads = [], [], set()
        self.error, self.stores_first = None, False

    def write(self, records, *, is_retry):
        self.calls.append((len(records), is_retry))
        self.threads.add(threading.get_ident())
        if self.error is None or self.stores_first:
            self.kept += [record for record in records if not is_retry or record not in self.kept]
        if self.error is not None:
            raise self.error


class Calls:
    """Stores records by calling a function."""

    def __init__(self, write):
        self.write = write


@pytest.fixture
def store():
    return Store()


@pytest.fixture
def said():
    return []


@pytest.fixture
def writer(store, said):
    writer = AsyncWriter(
        store, is_retryable=lambda error: isinstance(error, OSError), warn=said.append, interval_s=0.02
    )
    yield writer
    writer.abandon()


def _points(first, last):
    return [Point("loss", float(step), 1, step) for step in range(first, last)]


def test_points_arrive_in_order_and_from_the_writers_thread_only(writer, store):
    for point in _points(0, 5000):
        writer.add_points([point])
    assert writer.flush(10)
    assert store.kept == _points(0, 5000)
    assert threading.get_ident() not in store.threads


def test_a_call_holds_at_most_a_thousand_points(writer, store):
    writer.add_points(_points(0, 2500))
    assert writer.flush(10)
    assert max(size for size, _ in store.calls) <= 1000


def test_nothing_is_lost_or_doubled_while_the_store_is_away(writer, store, said):
    store.error = OSError("Connection refused")
    writer.add_points(_points(0, 100))
    writer.add(Tag("a", "b"))
    assert not writer.flush(0.3)
    writer.add_points(_points(100, 200))
    store.error = None
    assert writer.flush(10)
    assert store.kept == [*_points(0, 200), Tag("a", "b")]
    assert [line.split(" (")[0].split(" after")[0] for line in said] == ["store unavailable", "store available again"]


def test_a_batch_that_was_stored_before_its_error_is_sent_again_as_unsure(writer, store):
    store.error, store.stores_first = OSError("timed out"), True
    writer.add_points(_points(0, 10))
    writer.flush(0.1)
    store.error = None
    assert writer.flush(10)
    assert store.kept == _points(0, 10)
    assert store.calls[0] == (10, False)
    assert all(unsure for _, unsure in store.calls[1:])


def test_what_the_store_refuses_for_good_does_not_hold_up_the_rest(writer, store, said):
    store.error = ValueError("no such run")
    writer.add_points(_points(0, 3))
    assert writer.flush(10)
    store.error = None
    writer.add_points(_points(3, 5))
    assert writer.flush(10)
    assert writer.rejected == _points(0, 3)
    assert store.kept == _points(3, 5)
    assert said == ["the store rejects point records: no such run"]


def test_an_abandoned_writer_hands_back_everything_that_is_not_stored(writer, store):
    store.error = OSError("away")
    writer.add_points(_points(0, 1500))
    writer.add(Tag("a", "b"))
    writer.flush(0.2)
    assert writer.abandon() == [*_points(0, 1500), Tag("a", "b")]


def test_draining_lasts_as_long_as_records_leave_the_queue(said):
    stored = []

    def slow(records, *, is_retry):  # noqa: ARG001
        time.sleep(0.1)
        stored.extend(records)

    writer = AsyncWriter(Calls(slow), is_retryable=lambda _: True, warn=said.append, interval_s=0.01, batch_size=10)
    writer.add_points(_points(0, 100))
    assert writer.drain(0.5, notify_after_s=0.3)
    assert stored == _points(0, 100)
    assert len(said) == 1
    assert re.fullmatch(r"still storing \d+ records; Ctrl-C saves the rest in a file", said[0])


def test_draining_ends_when_nothing_moves(writer, store):
    store.error = OSError("away")
    writer.add_points(_points(0, 10))
    begun = time.monotonic()
    assert not writer.drain(0.4)
    assert 0.3 < time.monotonic() - begun < 5


def test_an_upload_that_is_under_way_may_take_longer_by_its_size(tmp_path):
    path = tmp_path / "big"
    with path.open("wb") as file:
        file.truncate(2_000_000)
    stored = []

    def upload(records, *, is_retry):  # noqa: ARG001
        time.sleep(0.8)
        stored.extend(records)

    writer = AsyncWriter(Calls(upload), is_retryable=lambda _: True, warn=print, interval_s=0.01)
    writer.add(Artifact(str(path), ""))
    assert writer.drain(0.1)
    assert stored == [Artifact(str(path), "")]


def test_a_store_that_hangs_does_not_hold_the_caller():
    release = threading.Event()

    def hang(records, *, is_retry):  # noqa: ARG001
        release.wait(30)

    writer = AsyncWriter(Calls(hang), is_retryable=lambda _: True, warn=print, interval_s=0.01)
    writer.add_points(_points(0, 5))
    time.sleep(0.1)
    writer.add_points(_points(5, 8))
    assert not writer.flush(0.1)
    assert writer.abandon(0.1) == _points(0, 8)
    release.set()


def test_points_do_not_wait_for_a_file_that_has_no_place(said):
    stored = []

    def send(records, *, is_retry):  # noqa: ARG001
        if isinstance(records[0], Tag):
            raise OSError(28, "No space left on device")
        stored.extend(records)

    writer = AsyncWriter(Calls(send), is_retryable=lambda _: True, warn=said.append, interval_s=0.01)
    writer.add(Tag("a", "b"))
    assert not writer.flush(0.1)
    writer.add_points(_points(0, 30))
    assert not writer.flush(0.2)
    assert stored == _points(0, 30)
    assert writer.abandon() == [Tag("a", "b")]
    assert said == [
        "store unavailable (No space left on device); tags and files are buffered, and stored when it is back"
    ]


def test_a_store_that_comes_and_goes_all_day_fills_no_log(writer, store, said):
    for step in range(40):
        store.error = OSError("Connection refused")
        writer.add_points(_points(step, step + 1))
        while writer._points.failing_since is None:
            time.sleep(0.001)
        store.error = None
        writer._points.retry_at = 0.0
        assert writer.flush(10)
    assert store.kept == _points(0, 40)
    assert len(said) < 20
    assert said[-1].endswith("further ones are not reported")


def test_more_points_than_the_memory_holds_become_half_of_them_and_that_is_said(store, said):
    store.error = OSError("away")
    writer = AsyncWriter(
        store, is_retryable=lambda _: True, warn=said.append, interval_s=0.01, batch_size=10, max_buffered=100
    )
    for step in range(200):
        writer.add_points([Point("loss", float(step), 1, step), Point("accuracy", 0.5, 1, step)])
    deadline = time.monotonic() + 10
    while len(writer._points.waiting) > 200 and time.monotonic() < deadline:
        time.sleep(0.01)
    kept = writer.abandon()
    assert len(kept) + writer.dropped_points == 400
    assert {point.key for point in kept} == {"loss", "accuracy"}
    for key in ("loss", "accuracy"):
        steps = [point.step for point in kept if point.key == key]
        assert steps == sorted(set(steps)), "in order"
        assert steps[0] <= 1
    assert sum("dropping every second point" in line for line in said) == 1

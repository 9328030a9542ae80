import threading
import time

import pytest

from runner.tracking import run_file
from runner.tracking import writer as writing
from runner.tracking.records import Point, Tag
from runner.tracking.run_file import RunFile
from runner.tracking.writer import AsyncWriter


class Store:
    """Keeps what it is sent; raises as long as `error` is set."""

    def __init__(self):
        self.kept, self.sizes, self.threads = [], [], set()
        self.error = None

    def write(self, records):
        self.sizes.append(len(records))
        self.threads.add(threading.get_ident())
        if self.error is not None:
            raise self.error
        self.kept += records


@pytest.fixture
def store():
    return Store()


@pytest.fixture
def said():
    return []


@pytest.fixture
def file(tmp_path):
    return RunFile(tmp_path, "r", "sqlite:////x.db")


@pytest.fixture
def writer(store, file, said):
    writer = AsyncWriter(store.write, file, said.append, interval_s=0.02)
    yield writer
    writer.abandon()


def _points(first, last):
    return [Point("loss", float(step), 1, step) for step in range(first, last)]


def test_points_arrive_in_order_and_from_the_writers_thread_only(writer, store):
    for point in _points(0, 5000):
        writer.add([point])
    assert writer.flush(10)
    assert store.kept == _points(0, 5000)
    assert max(store.sizes) <= 1000
    assert threading.get_ident() not in store.threads


def test_nothing_is_lost_or_doubled_while_the_store_is_away(writer, store, said):
    store.error = OSError("Connection refused")
    writer.add(_points(0, 100))
    writer.add([Tag("a", "b")])
    assert not writer.flush(0.3)
    writer.add(_points(100, 200))
    store.error = None
    assert writer.flush(10)
    assert store.kept == [*_points(0, 200), Tag("a", "b")]
    assert [line.split(" (")[0].split(" after")[0] for line in said] == ["store unavailable", "store available again"]


def test_what_the_store_refuses_for_good_does_not_hold_up_the_rest(writer, store, said):
    store.error = ValueError("no such run")
    writer.add(_points(0, 3))
    assert writer.flush(10)
    store.error = None
    writer.add(_points(3, 5))
    assert writer.flush(10)
    assert writer.rejected == 3
    assert store.kept == _points(3, 5)
    assert said == ["the store rejects point records: no such run"]


def test_an_abandoned_writer_hands_back_everything_that_is_not_stored(writer, store):
    store.error = OSError("away")
    writer.add(_points(0, 1500))
    writer.add([Tag("a", "b")])
    writer.flush(0.2)
    assert writer.abandon() == [*_points(0, 1500), Tag("a", "b")]


def test_draining_lasts_as_long_as_records_leave_the_queue(file, said, monkeypatch):
    stored = []

    def slow(records):
        time.sleep(0.1)
        stored.extend(records)

    monkeypatch.setattr(writing, "POINTS_PER_CALL", 10)
    writer = AsyncWriter(slow, file, said.append, interval_s=0.01)
    writer.add(_points(0, 100))
    assert writer.flush(0.5, while_moving=True)
    assert stored == _points(0, 100)


def test_a_store_that_hangs_holds_neither_the_caller_nor_the_file(file):
    release = threading.Event()

    def hang(_):
        release.wait(30)

    writer = AsyncWriter(hang, file, print, interval_s=0.01)
    writer.add(_points(0, 5))
    time.sleep(0.1)
    writer.add(_points(5, 8))
    assert not writer.flush(0.1)
    assert writer.abandon(0.1) == _points(0, 8)
    assert run_file.parsed(file.path)[1] == _points(0, 8)
    release.set()


def test_points_do_not_wait_for_a_file_that_has_no_place(file, said):
    stored = []

    def send(records):
        if isinstance(records[0], Tag):
            raise OSError(28, "No space left on device")
        stored.extend(records)

    writer = AsyncWriter(send, file, said.append, interval_s=0.01)
    writer.add([Tag("a", "b")])
    assert not writer.flush(0.1)
    writer.add(_points(0, 30))
    assert not writer.flush(0.2)
    assert stored == _points(0, 30)
    assert writer.abandon() == [Tag("a", "b")]
    assert said == ["store unavailable (No space left on device); what waits is stored when it is back"]

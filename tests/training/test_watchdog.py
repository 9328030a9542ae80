"""The watchdog: what it reports, once each, and when it ends a run."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from runner.config.schema_trainer import WatchdogConfig
from runner.host import work
from runner.training.watchdog import Watchdog


class Watched:
    """A clock that is set by hand, and a watchdog of it."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, config: WatchdogConfig, *, ends: bool) -> None:
        self.now = 0.0
        monkeypatch.setattr("runner.host.work.time.monotonic", lambda: self.now)
        self.clock = work.Clock()
        self.reports: list[str] = []
        self.ended: list[str] = []
        end = self.ended.append if ends else None
        self.exits: list[float] = []
        self.watchdog = Watchdog(
            config, self.clock, folder, 3, self.reports.append, end, lambda: self.exits.append(self.now)
        )

    def calls(self, count: int, seconds: float) -> None:
        """Does pieces of work of a kind that take so long each."""
        for _ in range(count):
            with self.clock.doing(work.TRAINING):
                self.now += seconds
                self.watchdog.look()


CONFIG = WatchdogConfig(factor=10.0, at_least="1m", end_after="1h")


def test_work_that_takes_far_longer_than_usual_is_reported_once_with_stacks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    watched = Watched(tmp_path, monkeypatch, CONFIG, ends=True)
    watched.calls(9, 8.0)
    with watched.clock.doing(work.TRAINING):
        watched.now += 79.0
        watched.watchdog.look()
        assert watched.reports == []
        watched.now += 2.0
        watched.watchdog.look()
        watched.now += 100.0
        watched.watchdog.look()
    (line,) = watched.reports
    assert line.startswith("a call of training steps has taken 81 s so far, and its median is 8 s; the stacks are in ")
    stacks = (tmp_path / "stacks-3-1.txt").read_text()
    assert "test_watchdog.py" in stacks
    assert watched.ended == []
    watched.calls(1, 300.0)
    assert len(watched.reports) == 2, "another piece of work is reported again"


def test_short_work_and_the_first_pieces_are_not_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    watched = Watched(tmp_path, monkeypatch, CONFIG, ends=True)
    watched.calls(4, 0.001)
    watched.calls(1, 500.0)
    watched.calls(9, 0.001)
    watched.calls(1, 59.0)
    assert watched.reports == []
    watched.calls(1, 61.0)
    assert len(watched.reports) == 1


@pytest.mark.parametrize("kind", [work.INPUT, work.EVALUATION, work.SAVE])
def test_each_kind_has_a_median_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    watched = Watched(tmp_path, monkeypatch, CONFIG, ends=True)
    watched.calls(9, 50.0)
    for seconds in (1.0,) * 9 + (70.0,):
        with watched.clock.doing(kind):
            watched.now += seconds
            watched.watchdog.look()
    assert len(watched.reports) == 1


@pytest.mark.parametrize("ends", [True, False])
def test_past_the_limit_process_0_ends_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ends: bool) -> None:
    config = WatchdogConfig(factor=None, end_after="1h")
    watched = Watched(tmp_path, monkeypatch, config, ends=ends)
    watched.calls(1, 3599.0)
    assert watched.ended == []
    watched.calls(1, 3601.0)
    assert watched.reports == []
    if ends:
        assert watched.ended[0].startswith(
            "a call of training steps has taken 3601 s, longer than trainer.watchdog.end_after=1h; the stacks are in "
        )
    else:
        assert watched.ended == []
    assert len(watched.exits) == len(watched.ended)


def test_a_start_and_a_compilation_have_no_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    watched = Watched(tmp_path, monkeypatch, CONFIG, ends=True)
    for kind in (work.START, work.COMPILE, work.REPORT):
        with watched.clock.doing(kind):
            watched.now += 1e6
            watched.watchdog.look()
    assert watched.ended == []
    assert watched.reports == []


def test_its_thread_looks_and_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("runner.training.watchdog._LOOK_S", 0.001)
    ended = threading.Event()
    clock = work.Clock()
    config = WatchdogConfig(end_after="0.01s")
    watchdog = Watchdog(config, clock, tmp_path, 0, str, lambda _: ended.set(), str)
    with clock.doing(work.TRAINING):
        watchdog.start()
        assert ended.wait(30.0)
    watchdog.close()
    assert not watchdog._thread.is_alive()


def test_a_run_whose_end_can_not_be_recorded_ends_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("runner.training.watchdog._LOOK_S", 0.001)
    clock = work.Clock()
    exited = threading.Event()

    def failing(_: str) -> None:
        raise RuntimeError("the store is gone")

    watchdog = Watchdog(WatchdogConfig(end_after="0.01s"), clock, tmp_path, 0, str, failing, exited.set)
    with clock.doing(work.TRAINING):
        watchdog.start()
        assert exited.wait(30.0)
    watchdog.close()
    assert "could not record why the run ends: RuntimeError: the store is gone" in capsys.readouterr().err


def test_a_record_that_hangs_delays_the_end_by_seconds_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("runner.training.watchdog._LOOK_S", 0.001)
    monkeypatch.setattr("runner.training.watchdog._RECORD_S", 0.01)
    clock = work.Clock()
    exited = threading.Event()

    def hanging(_: str) -> None:
        assert exited.wait(30.0)

    watchdog = Watchdog(WatchdogConfig(end_after="0.01s"), clock, tmp_path, 0, str, hanging, exited.set)
    with clock.doing(work.TRAINING):
        watchdog.start()
        assert exited.wait(20.0)
    watchdog.close()


def test_a_report_that_fails_does_not_end_the_watch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("runner.training.watchdog._LOOK_S", 0.001)
    watchdog = Watchdog(CONFIG, work.Clock(), tmp_path, 0, str, None)
    looks: list[int] = []
    looked = threading.Event()

    def look() -> None:
        looks.append(1)
        if len(looks) == 1:
            raise RuntimeError("the store is gone")
        looked.set()

    monkeypatch.setattr(watchdog, "look", look)
    watchdog.start()
    assert looked.wait(30.0)
    watchdog.close()
    assert "the watchdog could not report: RuntimeError: the store is gone" in capsys.readouterr().err

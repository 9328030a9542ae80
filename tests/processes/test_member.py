"""What processes of a run tell each other, and how they end: together, within 30 s, each with one line."""

from pathlib import Path

import pytest

from runner.cluster.launch import free_port
from tests.processes.started import End, Process, closing, explicit, team

pytestmark = pytest.mark.slow


def ends(folder: Path, act: str, count: int = 2) -> list[End]:
    """Returns how processes that do the same ended."""
    with closing(*team(folder, act, count)) as started:
        return [one.end() for one in started]


def test_what_is_told_reaches_all_and_what_all_say_comes_in_their_order(tmp_path: Path) -> None:
    for end in ends(tmp_path, "talk", 3):
        (said,) = end.said
        assert (end.code, end.lines) == (0, [])
        assert said["told"] == {"step": 49, "by": 0}
        assert said["every"] == [[0, 49], [1, 49], [2, 49]]
        assert said["long"] == 1_000_000


def test_who_differs_is_named_in_every_process(tmp_path: Path) -> None:
    line = "error: process 2 and process 0 differ in the data's SHA-256: bb and aa"
    assert [(end.code, end.lines) for end in ends(tmp_path, "differ", 3)] == [(1, [line])] * 3


def test_a_process_that_never_comes_is_named(tmp_path: Path) -> None:
    where = free_port()
    come = [Process(tmp_path / str(one), explicit(one, 3, where, start_timeout=5.0), "talk") for one in (0, 2)]
    with closing(*come):
        for end in [one.end() for one in come]:
            assert end.code == 1
            (line,) = end.lines
            assert line.startswith("error: 1 of 3 processes did not connect within 5 s (cluster.start_timeout): 1; ")

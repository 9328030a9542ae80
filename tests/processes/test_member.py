"""What processes of a run tell each other, and how they end: together, within 30 s, each with one line."""

from __future__ import annotations

import json
import platform
import signal
import socket
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from runner.processes.launch import free_port
from tests.processes.started import End, Process, closing, explicit, is_there, team, until

pytestmark = pytest.mark.slow

HERE = platform.node()
GONE = "disconnected without a message; it was probably killed"


def ends(folder: Path, act: str, count: int = 2) -> list[End]:
    """Returns how processes that do the same ended."""
    with closing(*team(folder, act, count)) as started:
        return [one.end() for one in started]


def all_here(processes: Sequence[Process]) -> None:
    """Waits until all have come together."""
    until(lambda: all(one.said for one in processes))


def test_what_is_told_reaches_all_and_what_all_say_comes_in_their_order(tmp_path: Path) -> None:
    for end in ends(tmp_path, "talk", 3):
        (said,) = end.said
        assert (end.code, end.lines) == (0, [])
        assert said["told"] == {"step": 49, "by": 0}
        assert said["every"] == [[0, 49], [1, 49], [2, 49]]
        assert said["long"] == 1_000_000


def test_what_process_0_could_not_do_fails_in_all_alike_and_they_go_on(tmp_path: Path) -> None:
    for end in ends(tmp_path, "fail_first"):
        (said,) = end.said
        assert (end.code, end.lines) == (0, [])
        kind, number, text = said["caught"]["disk"]
        assert (kind, number) == ("OSError", 28)
        assert text.startswith("[Errno 28] No space left on device")
        assert said["caught"]["other"] == ["RuntimeError", None, "no such way"]
        assert said["after"] == "all go on"


def test_who_differs_is_named_in_every_process(tmp_path: Path) -> None:
    line = "error: process 2 and process 0 differ in the data's SHA-256: bb and aa"
    assert [(end.code, end.lines) for end in ends(tmp_path, "differ", 3)] == [(1, [line])] * 3


def test_the_failure_of_one_is_the_end_of_all_with_its_reason(tmp_path: Path) -> None:
    first, second, third = ends(tmp_path, "stand_alone_last", 3)
    why = "[Errno 28] No space left on device"
    assert (second.code, second.lines) == (1, [f"error: {why}"])
    for other in (first, third):
        assert other.code == 1
        (line,) = other.lines
        assert line.startswith(f"error: process 1 ({HERE}, pid ")
        assert line.endswith(f") failed: {why}")


def test_a_refusal_is_the_same_line_in_all_with_exit_code_2(tmp_path: Path) -> None:
    line = "error: trainer.epochs=0: at least 1; set trainer.epochs=1"
    assert [(end.code, end.lines) for end in ends(tmp_path, "refuse_last")] == [(2, [line])] * 2


def test_a_process_that_exits_on_its_own_is_the_end_of_all(tmp_path: Path) -> None:
    first, second = ends(tmp_path, "leave_last")
    assert (second.code, second.lines) == (1, ["no more of this"])
    assert first.code == 1
    (line,) = first.lines
    assert line.startswith(f"error: process 1 ({HERE}, pid ")
    assert line.endswith(") failed: it exits with code 1")


@pytest.mark.nightly
@pytest.mark.parametrize("who", [0, 1])
@pytest.mark.parametrize("act", ["wait", "stick"])
def test_a_process_that_is_killed_ends_the_others(tmp_path: Path, act: str, who: int) -> None:
    with closing(*team(tmp_path, act)) as started:
        all_here(started)
        started[who].send(signal.SIGKILL)
        assert started[who].end().code == -signal.SIGKILL
        left = started[1 - who].end()
    why = f"process {who} ({HERE}, pid {started[who].process.pid}) {GONE}" if who else f"process 0 {GONE}"
    assert (left.code, left.lines) == (1, [f"error: {why}"])
    recorded = [said["recorded"] for said in left.said if "recorded" in said]
    assert recorded == ([why] if act == "stick" else []), "who is stuck is ended by another thread, which records it"


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
@pytest.mark.parametrize("who", [0, 1])
def test_a_signal_to_one_ends_all_at_the_same_step(tmp_path: Path, who: int, signum: signal.Signals) -> None:
    if signal.getsignal(signum) == signal.SIG_IGN:
        pytest.skip("this signal is ignored here, as under nohup")
    with closing(*team(tmp_path, "step")) as started:
        all_here(started)
        started[who].send(signum)
        done = [one.end() for one in started]
    assert [end.code for end in done] == [128 + signum] * 2
    assert [end.lines for end in done] == [["interrupted"]] * 2
    steps = [end.said[-1]["step"] for end in done]
    assert steps[0] == steps[1]


def test_a_signal_to_one_that_waits_for_the_others_ends_them_too(tmp_path: Path) -> None:
    with closing(*team(tmp_path, "wait_for_all", 3)) as started:
        all_here(started)
        started[1].send(signal.SIGTERM)
        assert [one.end().code for one in started] == [143, 143, 143]


def test_a_process_that_never_comes_is_named(tmp_path: Path) -> None:
    where = free_port()
    come = [Process(tmp_path / str(one), explicit(one, 3, where, start_timeout=5.0), "talk") for one in (0, 2)]
    with closing(*come):
        for end in [one.end() for one in come]:
            assert end.code == 1
            (line,) = end.lines
            assert line.startswith("error: process 1 of 3 did not connect within 5 s (cluster.start_timeout)")


def test_where_process_0_never_comes_the_others_say_where_they_looked_for_it(tmp_path: Path) -> None:
    where = free_port()
    with closing(Process(tmp_path / "1", explicit(1, 2, where, start_timeout=1.0), "talk")) as (alone,):
        end = alone.end()
    assert end.code == 1
    (line,) = end.lines
    assert line.startswith(f"error: process 1 could not connect to process 0 at 127.0.0.1:{where} within 1 s ")
    assert "cluster.coordinator" in line


def test_a_process_that_comes_twice_ends_all_and_both_are_named(tmp_path: Path) -> None:
    where = free_port()
    come = [Process(tmp_path / name, explicit(index, 3, where), "talk") for index, name in enumerate(("first", "one"))]
    with closing(*come):
        until(lambda: _connections(where) >= 2)
        with closing(Process(tmp_path / "another", explicit(1, 3, where), "talk")) as (another,):
            done = [one.end() for one in (*come, another)]
    pids = [one.process.pid for one in (come[1], another)]
    named = [f"{HERE}, pid {pid}" for pid in pids]
    for end in done:
        assert end.code == 1
        (line,) = end.lines
        said = [f"error: two processes have index 1: {one}, and {two}; " for one, two in (named, reversed(named))]
        assert line.startswith(tuple(said))


def _connections(port: int) -> int:
    """Returns how many are connected to a port of this machine."""
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return sum(row[1].endswith(f":{port:04X}") and row[3] == "01" for row in rows)


def test_a_process_that_was_told_of_another_number_of_processes_ends_all(tmp_path: Path) -> None:
    where = free_port()
    with closing(
        Process(tmp_path / "0", explicit(0, 2, where), "talk"), Process(tmp_path / "1", explicit(1, 3, where), "talk")
    ) as started:
        done = [one.end() for one in started]
    for end in done:
        assert end.code == 1
        (line,) = end.lines
        assert line.startswith(f"error: process 1 ({HERE}, pid ")
        assert line.endswith(") and process 0 have different numbers of processes: 3 and 2")


@pytest.mark.parametrize(
    ("key", "first", "other", "said"),
    [
        ("optimizer.learning_rate", 0.01, 0.02, "optimizer.learning_rate: 0.02 and 0.01"),
        ("the version of keras", "3.15.1", "3.15.0", "the version of keras: 3.15.0 and 3.15.1"),
        ("mesh.axes.model", None, 2, "mesh.axes.model: 2 and null"),
    ],
)
def test_before_anything_is_built_it_is_said_who_differs_in_what(
    tmp_path: Path, key: str, first: object, other: object, said: str
) -> None:
    where = free_port()
    common = {"model.hidden": [128]}
    come = [
        Process(tmp_path / str(index), explicit(index, 3, where), "talk", common | {key: value})
        for index, value in enumerate((first, first, other))
    ]
    with closing(*come):
        done = [one.end() for one in come]
    for end in done:
        assert (end.code, list(end.said)) == (1, [])
        (line,) = end.lines
        assert line == f"error: process 2 ({HERE}, pid {come[2].process.pid}) and process 0 differ in {said}"


def test_who_comes_when_the_run_has_ended_is_told_why(tmp_path: Path) -> None:
    where = free_port()
    with closing(*team(tmp_path, "stick", port=where)) as started:
        all_here(started)
        started[1].send(signal.SIGKILL)
        started[1].end()  # process 0 still waits for its main thread, which is stuck
        with closing(Process(tmp_path / "late", explicit(1, 2, where), "stick")) as (late,):
            end = late.end()
        why = f"error: process 1 ({HERE}, pid {started[1].process.pid}) {GONE}"
        assert (end.code, end.lines) == (1, [why])
        assert started[0].end().lines == [why]


def test_strangers_at_the_port_are_turned_away_and_nothing_else_happens(tmp_path: Path) -> None:
    where = free_port()
    lines = [b"GET / HTTP/1.1\n\n", b"[]\n", b"{}\n", b'{"kind": "join", "token": ""}\n', b"\xff\n", b""]
    lines += [json.dumps({"kind": "join", "token": "", "index": 1, "count": 3, "about": 3}).encode() + b"\n"]
    with closing(Process(tmp_path / "0", explicit(0, 2, where), "talk")) as (first,), ExitStack() as opened:
        until(lambda: _reachable(where))
        for line in lines:
            one = opened.enter_context(socket.create_connection(("127.0.0.1", where)))
            one.sendall(line)
        with closing(Process(tmp_path / "1", explicit(1, 2, where), "talk")) as (second,):
            assert [(end.code, end.lines) for end in (first.end(), second.end())] == [(0, []), (0, [])]


def _reachable(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port)).close()
    except OSError:
        return False
    return True


# What takes the 15 seconds after which a process counts as silent; all at once.


def _stopped(folder: Path, who: int) -> tuple[list[End | None], list[Process]]:
    with closing(*team(folder, "wait_for_all", 3)) as started:
        all_here(started)
        started[who].send(signal.SIGSTOP)
        return [None if index == who else one.end() for index, one in enumerate(started)], list(started)


def _taken(folder: Path) -> tuple[list[End | None], list[Process]]:
    other = socket.create_server(("127.0.0.1", 0))
    with other, closing(*team(folder, "talk", port=other.getsockname()[1])) as started:
        return [one.end() for one in started], list(started)


@pytest.fixture(scope="module")
def silent(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mapping[str, Any]]:
    folder = tmp_path_factory.mktemp("silent")
    with ThreadPoolExecutor() as pool:
        cases = {
            "first": pool.submit(_stopped, folder / "first", 0),
            "second": pool.submit(_stopped, folder / "second", 1),
            "taken": pool.submit(_taken, folder / "taken"),
        }
        yield {name: case.result() for name, case in cases.items()}


@pytest.mark.nightly
def test_a_process_that_is_stopped_ends_the_others(silent: Mapping[str, Any]) -> None:
    done, started = silent["second"]
    line = f"error: process 1 ({HERE}, pid {started[1].process.pid}) has not answered for 15 s"
    assert [(end.code, end.lines) for end in (done[0], done[2])] == [(1, [line])] * 2


@pytest.mark.nightly
def test_process_0_stopped_ends_the_others(silent: Mapping[str, Any]) -> None:
    done, _ = silent["first"]
    assert [(end.code, end.lines) for end in done[1:]] == [(1, ["error: process 0 has not answered for 15 s"])] * 2


@pytest.mark.nightly
def test_a_port_that_is_taken_is_named_and_who_reaches_another_there_does_not_wait_for_ever(
    silent: Mapping[str, Any],
) -> None:
    (first, second), started = silent["taken"]
    port = started[0].port
    assert (first.code, second.code) == (1, 1)
    (line,) = first.lines
    assert line.startswith(f"error: process 0 can't listen on 127.0.0.1:{port} (Address already in use); ")
    assert second.lines == ["error: process 0 has not answered for 15 s"]


@pytest.mark.nightly
def test_nothing_is_left_of_those_that_have_ended(silent: Mapping[str, Any]) -> None:
    pids = [one.process.pid for _, started in silent.values() for one in started]
    assert [pid for pid in pids if is_there(pid)] == []

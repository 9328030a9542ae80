"""The launcher of `cluster=local`: what it starts, what it shows, and that nothing is left however it ends."""

import os
import platform
import signal
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.proc import is_there, until
from tests.processes.started import WITHIN_S, End, Process, closing

pytestmark = pytest.mark.slow

OF_SCHEDULERS = ("SLURM_", "OMPI_", "PMI_", "PMIX_", "PRTE_")


@contextmanager
def launched(folder: Path, act: str, count: int = 2) -> Iterator[tuple[Process, Mapping[int, int]]]:
    """Starts the launcher; yields it and the ids of its processes by their number, when all have come."""
    with closing(Process(folder / "launcher", {"name": "local", "processes": count}, act)) as (launcher,):
        until(lambda: len(launcher.said) >= count, WITHIN_S)
        yield launcher, {said["index"]: said["pid"] for said in launcher.said}


def end_of(launcher: Process, pids: Mapping[int, int]) -> End:
    """Waits for the end of all."""
    done = launcher.end()
    until(lambda: not any(is_there(pid) for pid in pids.values()), within=10.0)
    return done


def test_each_process_is_the_same_command_with_a_group_and_an_environment_of_its_own(tmp_path: Path) -> None:
    with launched(tmp_path, "tell_itself", 3) as (launcher, pids):
        done = end_of(launcher, pids)
        assert done.code == 0
        assert len(done.said) == 3
        for said in done.said:
            assert said["group"] == said["pid"] != launcher.process.pid
            assert said["arguments"][:2] == ["-m", "tests.processes.worker"]
            assert said["input"] == ""
            variables = said["environment"]
            assert [
                key for key in variables if key.startswith((*OF_SCHEDULERS, "RUNNER_PROCESS", "RUNNER_LAUNCHER"))
            ] == []
            cores = len(os.sched_getaffinity(0))
            assert int(variables["RUNNER_CORES"]) == max(1, cores // 3) or "RUNNER_CORES" in os.environ
        assert [pid for said in done.said if is_there(pid := said["left"])] == [], "what they started ends with them"
        # Lines of process 0 are shown as they are.
        assert sorted(line[:5] for line in launcher.lines) == ["[1] {", "[2] {", '{"ind']
        assert sorted(done.lines) == ["[1] and on stderr", "[2] and on stderr", "and on stderr"]


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGUSR1])
def test_a_signal_to_the_launcher_ends_all_at_the_same_step(tmp_path: Path, signum: signal.Signals) -> None:
    with launched(tmp_path, "step") as (launcher, pids):
        launcher.send(signum)
        done = end_of(launcher, pids)
    assert (done.code, done.lines) == (128 + signum, ["interrupted"])
    steps = {said["index"]: said["step"] for said in done.said if "step" in said}
    assert steps.keys() == {0, 1}
    assert steps[0] == steps[1]


def test_a_second_signal_ends_processes_that_are_stuck(tmp_path: Path) -> None:
    with launched(tmp_path, "stick") as (launcher, pids):
        launcher.send(signal.SIGINT)
        time.sleep(1.3)  # signals within a second are one
        assert launcher.process.poll() is None
        launcher.send(signal.SIGINT)
        assert end_of(launcher, pids).code == 130


def test_a_launcher_that_is_killed_takes_its_processes_along(tmp_path: Path) -> None:
    with launched(tmp_path, "wait_for_all") as (launcher, pids):
        launcher.send(signal.SIGKILL)
        assert end_of(launcher, pids).code == -signal.SIGKILL


@pytest.mark.nightly
@pytest.mark.parametrize(("act", "who"), [("step", 0), ("stick", 1)])
def test_a_process_that_is_killed_is_the_end_of_all_in_one_line(tmp_path: Path, act: str, who: int) -> None:
    with launched(tmp_path, act) as (launcher, pids):
        os.kill(pids[who], signal.SIGKILL)
        done = end_of(launcher, pids)
    gone = f"process 1 ({platform.node()}, pid {pids[1]}) disconnected without a message; it was probably killed"
    assert done.code == 1
    assert done.lines == [f"error: {gone}" if who else "error: process 0: killed by SIGKILL"]


@pytest.mark.parametrize(("act", "code"), [("stand_alone_last", 1), ("refuse_last", 2)])
def test_the_failure_of_one_is_one_line_and_its_exit_code(tmp_path: Path, act: str, code: int) -> None:
    with closing(Process(tmp_path / "launcher", {"name": "local", "processes": 2}, act)) as (launcher,):
        done = launcher.end()
    assert done.code == code
    (line,) = done.lines
    why = "trainer.epochs=0: at least 1; set trainer.epochs=1" if code == 2 else "No space left on device"
    assert line.startswith("error: ")
    assert line.endswith(why)


@pytest.mark.nightly
def test_a_process_that_is_stopped_is_ended_with_the_others_in_one_line(tmp_path: Path) -> None:
    with launched(tmp_path, "wait_for_all") as (launcher, pids):
        os.kill(pids[1], signal.SIGSTOP)
        done = end_of(launcher, pids)
    assert done.code == 1
    (line,) = done.lines
    assert line.endswith(") has not answered for 15 s")

"""A short campaign of runs of several processes, and what the campaign itself takes for broken."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tests.campaign import faults, processes
from tests.campaign.faults import DISK, KINDS, LAUNCHER, MOMENTS, Fault
from tests.campaign.processes import Config, Ended, References, judge, tried
from tests.proc import needs_own_proc

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="processes are found in /proc")
TWO = Config("jax", 2)
KILLED = Fault("SIGKILL", 1, "step", 21, 0.0)
ENDED = Ended(1, 6.0, ("error: process 1 (here, pid 7) disconnected without a message; it was probably killed",))


@pytest.fixture(scope="module")
def references(tmp_path_factory: pytest.TempPathFactory) -> References:
    return References(tmp_path_factory.mktemp("whole"))


@pytest.mark.nightly
@pytest.mark.parametrize(
    "fault",
    [KILLED, Fault("SIGTERM", 0, "save", 28, 0.0), Fault(DISK, 1, "step", 42, 0.0)],
    ids=str,
)
def test_it_ends_soon_and_goes_on_as_if_nothing_had_been(tmp_path: Path, references: References, fault: Fault) -> None:
    case = tried(TWO, fault, random.Random(0), tmp_path / "case", references)
    assert case.held, case.note
    assert "too late" not in case.note


def test_the_same_seed_gives_the_same_cases_and_many_have_every_fault_moment_and_process() -> None:
    def cases(seed: int) -> list[tuple[Config, Fault]]:
        return [processes.drawn(number, seed)[:2] for number in range(200)]

    found = cases(3)
    assert found == cases(3) != cases(4)
    assert {fault.kind for _, fault in found} == set(KINDS)
    assert {fault.moment for _, fault in found} == set(MOMENTS)
    assert {fault.rank for _, fault in found} == {LAUNCHER, 0, 1, 2, 3}
    assert {config for config, _ in found} == set(processes.CONFIGS)


@needs_own_proc
def test_processes_are_found_by_the_folder_that_they_work_in_and_killed(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "import time; time.sleep(60)"]
    with subprocess.Popen(command, cwd=tmp_path) as process:
        assert faults.until(lambda: bool(faults.there(tmp_path)), lambda: False)
        assert [(one.pid, one.parent) for one in faults.there(tmp_path)] == [(process.pid, os.getpid())]
        assert str(process.pid) in faults.end(tmp_path)
        assert process.wait() == -signal.SIGKILL
        assert not faults.there(tmp_path)


@pytest.mark.parametrize(
    ("fault", "done", "status", "told"),
    [
        (KILLED, ENDED, "FAILED", ""),
        (KILLED, ENDED, "RUNNING", "status RUNNING in place of FAILED or None"),
        (replace(KILLED, rank=0), ENDED, "RUNNING", ""),
        (KILLED, replace(ENDED, code=None), "FAILED", "has not ended after 30 s"),
        (KILLED, replace(ENDED, left="7 of 1, (python) S"), "FAILED", "leaves processes"),
        (KILLED, replace(ENDED, lines=ENDED.lines * 2), "FAILED", "ends with the lines"),
        (KILLED, replace(ENDED, lines=("terminate called", *ENDED.lines)), "FAILED", "says ['terminate called']"),
        (KILLED, replace(ENDED, code=0, lines=()), "FAILED", "exit code 0 in place of 1"),
        (KILLED, replace(ENDED, code=0, lines=()), "FINISHED", ""),
        (replace(KILLED, kind="SIGTERM"), Ended(143, 1.0, ("interrupted",)), "KILLED", ""),
        (replace(KILLED, kind="SIGTERM"), Ended(143, 1.0, ("interrupted",)), "FAILED", "status FAILED"),
        (replace(KILLED, kind="SIGHUP"), Ended(143, 1.0, ("interrupted",)), "KILLED", "exit code 143 in place of 129"),
        (replace(KILLED, kind="SIGHUP"), replace(ENDED, code=129), "KILLED", "exit code 129, and says"),
        (None, ENDED, "FAILED", "exit code 1 in place of 0"),
    ],
)
def test_what_a_run_must_not_do_is_told(fault: Fault | None, done: Ended, status: str, told: str) -> None:
    wrong = judge(fault, done, status)
    assert any(told in one for one in wrong) if told else not wrong

"""Jobs, their names and outcomes, and how they are run: with processes of a few milliseconds, no training."""

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from runner.cluster.jobs import LOG_FILE, Job, Outcome, RunningJob, outcome_of, run_jobs
from runner.errors import Interrupted
from runner.host.signals import StopRequest
from tests import proc


@pytest.mark.parametrize(
    ("code", "status", "note"),
    [
        (0, "passed", ""),
        (1, "failed", "what it said"),
        (2, "refused", "what it said"),
        (130, "killed", "killed by SIGINT"),
        (138, "killed", "killed by SIGUSR1"),
        (-9, "killed", "killed by SIGKILL"),
        (-6, "failed", "killed by SIGABRT"),
    ],
)
def test_an_exit_code_is_an_outcome(code: int, status: str, note: str) -> None:
    outcome = outcome_of(code, 1.0, "what it said" if code in (1, 2) else "")
    assert (outcome.status, outcome.note) == (status, note)


class Watch:
    """Keeps outcomes."""

    def __init__(self) -> None:
        self.outcomes: dict[int, Outcome] = {}

    def ended(self, job: Job, outcome: Outcome) -> None:
        self.outcomes[job.number] = outcome


CLEAN = """
import signal, sys, time
def end(*_):
    print("ending")
    sys.exit(143)
signal.signal(signal.SIGTERM, end)
print("ready", flush=True)
time.sleep(60)
"""


def jobs(folder: Path, count: int) -> Iterator[Job]:
    return iter([Job(number, (), folder / str(number)) for number in range(count)])


def process(job: Job, *programs: str) -> RunningJob:
    return RunningJob(job, [sys.executable, "-c", programs[job.number % len(programs)]], {})


def run(count: int, folder: Path, start: Callable[[Job], RunningJob], watch: Watch, max_parallel: int) -> None:
    with StopRequest() as stop:
        run_jobs(jobs(folder, count), lambda job, _: start(job), watch.ended, stop, max_parallel=max_parallel)


def test_a_job_that_fails_or_is_killed_does_not_stop_the_others(tmp_path: Path) -> None:
    programs = (
        "pass",
        "import sys; print('error: no such thing', file=sys.stderr); sys.exit(1)",
        "import os; os.kill(os.getpid(), 9)",
        "import sys; sys.exit(2)",
        "import os; os._exit(0)",
    )
    watch = Watch()
    run(5, tmp_path, lambda job: process(job, *programs), watch, max_parallel=2)
    assert [watch.outcomes[n].status for n in range(5)] == ["passed", "failed", "killed", "refused", "passed"]
    assert watch.outcomes[1].note == "no such thing"


def test_a_job_sees_its_own_gpus_only(tmp_path: Path) -> None:
    program = "import os; print(os.environ['CUDA_VISIBLE_DEVICES'])"
    running = RunningJob(Job(0, (), tmp_path), [sys.executable, "-c", program], {}, ["2", "3"])
    proc.until(lambda: running.outcome() is not None)
    assert (tmp_path / LOG_FILE).read_text() == "2,3\n"


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_running_jobs_cleanly_and_starts_no_other(tmp_path: Path, signum: int) -> None:
    watch = Watch()

    def send() -> None:
        logs = [tmp_path / number / LOG_FILE for number in "01"]
        while not all(log.exists() and "ready" in log.read_text() for log in logs):
            time.sleep(0.02)
        os.kill(os.getpid(), signum)

    threading.Thread(target=send, daemon=True).start()
    with pytest.raises(Interrupted):
        run(4, tmp_path, lambda job: process(job, CLEAN), watch, max_parallel=2)
    assert {n: outcome.status for n, outcome in watch.outcomes.items()} == {0: "killed", 1: "killed"}
    assert (tmp_path / "0" / LOG_FILE).read_text().splitlines() == ["ready", "ending"]
    assert not (tmp_path / "2").exists()

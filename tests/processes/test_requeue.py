"""Which run a job of Slurm's goes on with when it starts again; what Slurm does is in test_schedulers.py."""

from __future__ import annotations

from pathlib import Path

import pytest

from runner.config.schema import CheckpointConfig, ClusterConfig, RunConfig, TrainerConfig
from runner.errors import ConfigError
from runner.processes import requeue
from runner.processes.requeue import Job
from runner.tracking import process
from runner.training.checkpoint import arguments, runs, storage
from tests.training.checkpoint.test_storage import content

COMMAND = ["cluster=auto", "cluster.requeue=true", "mesh=batch2"]
FIRST, AGAIN = Job("here:7", "7", 0), Job("here:7", "7", 1)
ELSEWHERE = {process.HOST: "another", process.PID: "1", process.BOOT: "a/b/c"}


def noted(folder: Path, name: str, job: Job, command: list[str] = COMMAND, **record: object) -> runs.SavedRun:
    """Leaves a run with a checkpoint that a job began on another machine."""
    saved = runs.register(folder, name, tracked=True, overrides=command, job=job.note(command))
    changed = {key: value for key, value in saved.record.items() if key != "sha256"} | record
    runs.write_record(saved.folder, changed)
    storage.write(saved.folder, content(5, name))
    return saved


@pytest.fixture
def started_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes this process one of the job's second start, where Slurm can't be asked."""
    monkeypatch.setenv("SLURM_CLUSTER_NAME", "here")
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setenv("SLURM_RESTART_COUNT", "1")
    monkeypatch.setenv("PATH", "")
    for key in ("SLURM_ARRAY_JOB_ID", "SLURM_ARRAY_TASK_ID"):
        monkeypatch.delenv(key, raising=False)


def config(folder: Path, **words: str) -> RunConfig:
    trainer = TrainerConfig(checkpoint=CheckpointConfig(folder=str(folder)))
    return RunConfig(cluster=ClusterConfig(name="auto", requeue=True), trainer=trainer, **words)


@pytest.mark.parametrize(
    ("variables", "job"),
    [
        ({"SLURM_JOB_ID": "7", "SLURM_CLUSTER_NAME": "here"}, FIRST),
        ({"SLURM_JOB_ID": "7", "SLURM_CLUSTER_NAME": "here", "SLURM_RESTART_COUNT": "1"}, AGAIN),
        # The last task of an array has the array's own number.
        (
            {"SLURM_JOB_ID": "7", "SLURM_ARRAY_JOB_ID": "7", "SLURM_ARRAY_TASK_ID": "3"},
            Job(":7_3", "7_3", 0),
        ),
        ({"OMPI_COMM_WORLD_RANK": "0"}, None),
    ],
)
def test_a_job_is_known_by_slurms_variables(variables: dict[str, str], job: Job | None) -> None:
    assert requeue.job(variables) == job


def test_the_run_of_the_same_command_in_an_earlier_start_is_found(tmp_path: Path) -> None:
    noted(tmp_path, "aaaa", FIRST)
    noted(tmp_path, "bbbb", Job("there:7", "7", 0))
    noted(tmp_path, "cccc", FIRST, ["mesh=batch8"])
    found = runs.of_job(tmp_path, AGAIN, COMMAND)
    assert found is not None
    assert found.id == "aaaa"
    assert runs.of_job(tmp_path, FIRST, COMMAND) is None, "the same start runs the command a second time"
    assert runs.of_job(tmp_path, AGAIN, [*COMMAND, "trainer.seed=2"]) is None


def test_of_several_runs_of_a_command_the_first_unfinished_goes_on(tmp_path: Path) -> None:
    noted(tmp_path, "aaaa", FIRST, finished=True, started=1.0)
    noted(tmp_path, "bbbb", FIRST, started=2.0)
    noted(tmp_path, "cccc", FIRST, started=3.0)
    found = runs.of_job(tmp_path, AGAIN, COMMAND)
    assert found is not None
    assert found.id == "bbbb"


@pytest.mark.usefixtures("started_again")
@pytest.mark.parametrize("words", [{}, {"branch": "dddd"}, {"resume": "dddd@10"}])
def test_a_job_that_starts_again_goes_on_with_its_run_whatever_that_began_with(
    tmp_path: Path, words: dict[str, str]
) -> None:
    saved = noted(tmp_path, "aaaa", FIRST)
    found = arguments.restarted(config(tmp_path, **words), COMMAND)
    assert (found.resume, found.branch) == (str(saved.folder), None)


@pytest.mark.usefixtures("started_again")
def test_another_command_of_the_job_begins_its_own_run(tmp_path: Path) -> None:
    noted(tmp_path, "aaaa", FIRST)
    own = config(tmp_path, resume="dddd")
    assert arguments.restarted(own, [*COMMAND, "resume=dddd"]) == own


@pytest.mark.usefixtures("started_again")
def test_a_run_that_had_finished_is_not_done_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    noted(tmp_path, "aaaa", FIRST, finished=True)
    with pytest.raises(SystemExit) as ended:
        arguments.restarted(config(tmp_path), COMMAND)
    assert ended.value.code == 0
    assert "job 7 finished this run before it was queued again" in capsys.readouterr().out


def test_a_run_of_another_machine_counts_as_ended_when_its_job_has_started_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A node that failed leaves a run that nobody could end; Slurm starts the job again on another."""
    noted(tmp_path, "aaaa", FIRST, process=ELSEWHERE)
    run, _ = runs.find("resume", "aaaa", tmp_path)
    monkeypatch.setattr(requeue, "job", lambda: FIRST)
    with pytest.raises(ConfigError, match="is still running it, or can't be seen from here"):
        runs.check_not_running("resume", run)
    monkeypatch.setattr(requeue, "job", lambda: AGAIN)
    runs.check_not_running("resume", run)


def test_a_forged_job_is_no_runs(tmp_path: Path) -> None:
    noted(tmp_path, "aaaa", Job("here:7", "7", -1))
    with pytest.raises(ConfigError, match=r"job\.restarts must be an integer of at least 0"):
        runs.find("resume", "aaaa", tmp_path)

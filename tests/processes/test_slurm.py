"""A job that Slurm starts again; what Slurm itself does is in test_schedulers.py."""

from __future__ import annotations

from pathlib import Path

import pytest

from runner.checkpoint import runs, storage
from runner.cluster import slurm
from runner.cluster.slurm import Job
from runner.errors import ConfigError
from runner.tracking import process
from tests.training.checkpoint.test_storage import content

FIRST, AGAIN = Job("here:7", 0), Job("here:7", 1)
ELSEWHERE = {process.HOST: "another", process.PID: "1", process.BOOT: "a/b/c"}


def begun_elsewhere(folder: Path, job: Job) -> None:
    """Leaves a run with a checkpoint that a job began on another machine."""
    saved = runs.register(folder, "aaaa", tracked=True, overrides=[], job=job)
    changed = {key: value for key, value in saved.record.items() if key != "sha256"}
    runs.write_record(saved.folder, {**changed, "process": ELSEWHERE})
    storage.write(saved.folder, content(5, "aaaa"))


@pytest.mark.parametrize(
    ("variables", "job"),
    [
        ({"SLURM_JOB_ID": "7", "SLURM_CLUSTER_NAME": "here"}, FIRST),
        ({"SLURM_JOB_ID": "7", "SLURM_CLUSTER_NAME": "here", "SLURM_RESTART_COUNT": "1"}, AGAIN),
        # The last task of an array has the array's own number.
        ({"SLURM_JOB_ID": "7", "SLURM_ARRAY_JOB_ID": "7", "SLURM_ARRAY_TASK_ID": "3"}, Job(":7_3", 0)),
        ({"OMPI_COMM_WORLD_RANK": "0"}, None),
    ],
)
def test_a_job_is_known_by_slurms_variables(variables: dict[str, str], job: Job | None) -> None:
    assert slurm.job(variables) == job


def test_a_run_of_another_machine_counts_as_ended_when_its_job_has_started_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A node that failed leaves a run that nobody could end; Slurm starts the job again on another."""
    begun_elsewhere(tmp_path, FIRST)
    run, _ = runs.find("resume", "aaaa", tmp_path)
    for job in (None, FIRST, Job("there:7", 1)):
        monkeypatch.setattr(slurm, "job", lambda job=job: job)
        with pytest.raises(ConfigError, match="is still running it, or can't be seen from here"):
            runs.check_not_running("resume", run)
    monkeypatch.setattr(slurm, "job", lambda: AGAIN)
    runs.check_not_running("resume", run)

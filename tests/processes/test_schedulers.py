"""Runs of two processes that a real Slurm or a real Open MPI starts and ends."""

import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tests import forks, stores
from tests.proc import until
from tests.processes.running import alike, differences, last, points
from tests.processes.slurm import Slurm, missing

pytestmark = [pytest.mark.slow, pytest.mark.nightly]

RUN = (
    *("dataset=digits", "mesh=batch2", "engine=jax", "engine.compilation_cache=false", "model.hidden=[24]"),
    *("trainer.epochs=40", "trainer.evaluate_every=10", "trainer.steps_per_call=2", "trainer.log_every_steps=20"),
    *("trainer.checkpoint.every_steps=40", "trainer.log_model=false", "trainer.progress=none"),
)
LONGEST_S = 300.0  # of a start on a machine that others share
MPIRUN = ("mpirun", "-n", "2", "--allow-run-as-root", "--oversubscribe")


@pytest.fixture(scope="module")
def slurm() -> Iterator[Slurm]:
    if why := missing():
        pytest.skip(f"no Slurm here: {why}")
    cluster = Slurm()
    yield cluster
    cluster.close()


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the run that our own launcher starts and that nobody ends."""
    folder = tmp_path_factory.mktemp("whole")
    ran(command(folder, "cluster=local"))
    return folder


def command(folder: Path, *overrides: str) -> list[str]:
    """Returns the command line of a run whose files lie in a folder."""
    places = (
        *(f"tracking.uri={stores.store_in(folder)}", f"trainer.checkpoint.folder={folder}/checkpoints"),
        f"hydra.run.dir={folder}/run",
    )
    return [sys.executable, "-m", "runner", *RUN, *places, *overrides]


def ran(started: Sequence[str]) -> None:
    """Runs a command to its good end."""
    done = subprocess.run(started, cwd=forks.ROOT, capture_output=True, text=True, timeout=LONGEST_S, check=False)
    assert done.returncode == 0, done.stderr


def assert_went_on(folder: Path, whole: Path) -> None:
    """Checks that a run that was asked to end, and went on, left what a whole run leaves."""
    assert differences(last(whole), last(folder)) == {}
    run, found = points(folder)
    assert run.info.status == "FINISHED"
    for key, expected in alike(points(whole)[1]).items():
        assert set(expected) <= set(found[key]), "besides, the mean of what it had done where it stopped"
        steps = [step for step, _ in found[key]]
        assert len(steps) == len(set(steps))


def test_mpirun_starts_one_run_that_ctrl_c_ends_and_that_goes_on(tmp_path: Path, whole: Path) -> None:
    """A second after Ctrl-C mpirun kills: what was saved before goes on, and the run's record does not say RUNNING."""
    if shutil.which(MPIRUN[0]) is None:
        pytest.skip("no Open MPI here: mpirun is not installed (apt-get install openmpi-bin)")
    started = [*MPIRUN, *command(tmp_path, "cluster=auto")]
    with (tmp_path / "output").open("wb") as output:
        process = subprocess.Popen(started, cwd=forks.ROOT, stdout=output, stderr=output, start_new_session=True)
    try:
        until(lambda: any(tmp_path.glob("checkpoints/*/step-*")) or process.poll() is not None)
        process.send_signal(signal.SIGINT)
        assert process.wait(LONGEST_S) != 0
    finally:
        process.kill()
        process.wait()
    ran([*started, "resume=latest"])
    assert_went_on(tmp_path, whole)


def test_a_job_that_is_about_to_end_is_queued_again_and_goes_on_as_the_same_run(
    slurm: Slurm, tmp_path: Path, whole: Path
) -> None:
    """The script is the one of docs/slurm.md: SIGUSR1 ends the run with 138."""
    script = tmp_path / "job.sh"
    line = shlex.join(command(tmp_path, "cluster=auto", "resume=auto", "name=exp1"))
    script.write_text(
        f"#!/bin/bash\nexport PYTHONPATH={forks.ROOT}\nsrun -n2 {line}\n"
        'code=$?\nif [ $code -eq 138 ]; then scontrol requeue "$SLURM_JOB_ID"; fi\nexit $code\n'
    )
    job = slurm.submit(script, "-n2", "--requeue", folder=tmp_path)
    until(lambda: any(tmp_path.glob("checkpoints/*/step-*")))
    slurm.ask("scancel", "--signal=USR1", str(job))  # as `#SBATCH --signal=USR1@60` sends it
    until(lambda: slurm.job(job)["Restarts"] == "1")
    assert points(tmp_path)[0].info.status == "KILLED"
    slurm.start_again(job)
    slurm.until(job, "COMPLETED", LONGEST_S)
    assert_went_on(tmp_path, whole)

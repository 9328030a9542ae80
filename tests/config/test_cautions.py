"""What a run is warned of, and what it is not."""

import pytest

from runner.config.schema import ClusterConfig, MeshConfig, OptimizerConfig, ScheduleConfig
from runner.plan.checks import warnings as cautions


def warned(devices: int = 1) -> list[str]:
    return cautions.of_config(MeshConfig({"batch": devices}, cpu_devices=256), ClusterConfig())


def test_many_virtual_devices_a_core_are_warned_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RUNNER_CORES", "2")
    assert warned(16) == []
    (line,) = warned(256)
    assert line.startswith("256 virtual devices on 2 cores show what a mesh computes, not how fast; ")


SLURM = {"SLURM_JOB_ID": "7", "SLURM_PROCID": "1", "SLURM_STEP_NODELIST": "a,b", "SLURM_STEP_NUM_TASKS": "2"}
OPEN_MPI = {"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_LOCAL_SIZE": "2"}
TORCHRUN = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "a", "MASTER_PORT": "1"}


@pytest.mark.parametrize(("name", "variables"), [("Slurm", SLURM), ("Open MPI", OPEN_MPI), ("torchrun", TORCHRUN)])
def test_tasks_of_a_scheduler_that_would_each_train_alone_are_warned_of(
    monkeypatch: pytest.MonkeyPatch, name: str, variables: dict[str, str]
) -> None:
    for key, value in variables.items():
        monkeypatch.setenv(key, value)
    if name != "torchrun":
        # torchrun in each task for itself: the launchers disagree.
        for key, value in TORCHRUN.items():
            monkeypatch.setenv(key, value if key != "WORLD_SIZE" else "1")
        monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")
    (line,) = warned()
    assert line.startswith(f"{name} started 2 tasks, and each will train a separate run; set cluster=auto")
    for key in ("SLURM_STEP_NUM_TASKS", "OMPI_COMM_WORLD_SIZE", "WORLD_SIZE"):
        monkeypatch.setenv(key, "1")
    assert warned() == []


@pytest.mark.parametrize(
    ("schedule", "said"),
    [
        (ScheduleConfig("cosine", warmup_steps=100), "warmup_steps=100 is no shorter than the run of 100 steps"),
        (ScheduleConfig("piecewise", boundaries=[50, 100], factors=[1, 0.5, 0.1]), "ends before step 100"),
        (ScheduleConfig("cosine", decay_steps=40), "a learning rate of 0 in the second half of the run"),
        (ScheduleConfig("exponential", decay_steps=1, decay_rate=1e-3), "a learning rate of 0 in the second half"),
    ],
)
def test_a_schedule_that_does_not_fit_the_runs_length_is_warned_of(schedule: ScheduleConfig, said: str) -> None:
    (line,) = cautions.of_rates(OptimizerConfig(schedule=schedule), 100)
    assert said in line

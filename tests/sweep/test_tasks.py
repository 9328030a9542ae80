"""Jobs of several processes that a cluster starts for a sweep."""

from __future__ import annotations

from typing import Any

import pytest

from runner.cli.sweep.state import (
    check_tasks,
    count,
    expected,
)
from runner.cluster import place
from runner.config.schema import ClusterConfig
from runner.errors import ConfigError

AUTO = ClusterConfig(name="auto")


def slurm(**parameters: object) -> dict[str, Any]:
    return {"cluster": "slurm", "parameters": parameters}


@pytest.mark.parametrize(
    ("launcher", "processes"),
    [
        (slurm(), 1),
        (slurm(tasks_per_node=4), 4),
        (slurm(nodes=2, tasks_per_node=4), 8),
        (slurm(slurm_nodes=3, slurm_ntasks_per_node=2), 6),
        ({"max_parallel": 2}, 1),
    ],
)
def test_the_launchers_parameters_say_how_many_processes_a_job_has(launcher: dict[str, Any], processes: int) -> None:
    assert count(launcher) == processes


def test_a_job_is_checked_for_the_processes_that_slurm_will_start() -> None:
    with expected(slurm(nodes=2, tasks_per_node=2)):
        assert place.count(AUTO) == 4
    with expected({"max_parallel": 2}), pytest.raises(ConfigError, match="no scheduler detected"):
        place.count(AUTO)


def test_tasks_that_would_each_run_the_whole_job_are_refused() -> None:
    check_tasks(slurm(tasks_per_node=2), AUTO)
    check_tasks(slurm(), ClusterConfig())
    with pytest.raises(ConfigError, match=r"2 processes per job.*cluster=single.*set cluster=auto"):
        check_tasks(slurm(tasks_per_node=2), ClusterConfig())

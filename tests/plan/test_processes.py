"""How many processes a plan is for, where nobody has started them."""

from __future__ import annotations

import pytest

from runner.cluster import place
from runner.config.schema import ClusterConfig
from runner.errors import ConfigError


@pytest.fixture(autouse=True)
def _no_scheduler(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SLURM_JOB_ID", "OMPI_COMM_WORLD_RANK", "RANK", "JOB_COMPLETION_INDEX"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize("name", ["local", "auto", "explicit"])
def test_the_number_of_processes_is_all_that_a_plan_needs(name: str) -> None:
    assert place.count(ClusterConfig(name, processes=4)) == 4


@pytest.mark.parametrize("name", ["auto", "explicit"])
def test_a_process_that_does_not_know_its_place_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=r"cluster(=auto|\.index=null):"):
        place.find(ClusterConfig(name, processes=4))
    with pytest.raises(ConfigError, match=r"cluster\.coordinator=null:"):
        place.find(ClusterConfig(name, processes=4, index=1))
    with pytest.raises(ConfigError, match=r"cluster(=auto|\.processes=null):"):
        place.count(ClusterConfig(name))


def test_a_scheduler_tells_the_number_where_the_config_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    variables = {"RANK": "1", "WORLD_SIZE": "3", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "2000"}
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert place.count(ClusterConfig("auto")) == 3
    found = place.find(ClusterConfig("auto"))
    assert found is not None
    assert (found.index, found.count) == (1, 3)

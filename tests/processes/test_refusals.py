"""What of `cluster` can't work is refused in one line, before a process is started or anything heavy imported."""

from __future__ import annotations

from typing import Any

import pytest

from runner.config.schema import ClusterConfig
from runner.errors import ConfigError
from runner.processes import place
from tests.nightly import nightly_except
from tests.refusals import Refusal, assert_refused, chosen_cases, name, refusal, refuse_all

EXPLICIT = "mesh=batch2 engine=jax cluster=explicit cluster.processes=2"
FIRST = f"{EXPLICIT} cluster.index=0"
HERE = f"{FIRST} cluster.coordinator=127.0.0.1:29400"

REFUSALS = [
    # Keys of another option.
    refusal("cluster.processes=2", "cluster.processes=2", "set cluster=auto or explicit or local, which have it"),
    refusal("cluster=single cluster.processes=2", "cluster.processes=2", "set cluster=auto or explicit or local"),
    refusal(
        "+cluster.processes=2", "cluster.processes=2", "cluster=single does not use this key", "set cluster=local"
    ),
    refusal("cluster=local cluster.index=1", "cluster.index=1", "set cluster=auto or explicit"),
    refusal("cluster=local +cluster.interface=eth0", "cluster.interface=eth0", "cluster=local does not use this key"),
    refusal("cluster=local cluster.procesess=2", "cluster.procesess=2", "did you mean cluster.processes?"),
    refusal("cluster=locl", "cluster=locl", "did you mean cluster=local?"),
    refusal("cluster.name=locl", "cluster.name=locl", "one of single, local, auto, explicit"),
    refusal("cluster=null", "cluster=null", "leave cluster out to get the default"),
    # Numbers of processes.
    refusal("cluster=local", "cluster.processes=2", "must divide the 1 devices of the mesh", "cluster.processes=1"),
    refusal(
        "mesh=batch8 cluster=local cluster.processes=3", "cluster.processes=3", "the 8 devices of the mesh (batch=8)"
    ),
    refusal("mesh=batch8 cluster=local cluster.processes=16", "cluster.processes=16", "set cluster.processes=8"),
    refusal("mesh=batch4_model2 cluster=local cluster.processes=5", "cluster.processes=5", "set cluster.processes=4"),
    refusal("cluster=local cluster.processes=0", "cluster.processes=0", "must be from 1 to 4,096"),
    refusal("cluster=local cluster.processes=5000", "cluster.processes=5000", "must be from 1 to 4,096"),
    refusal(
        "cluster=local cluster.processes=null", "cluster.processes=null", "cluster=local needs the number of processes"
    ),
    refusal("cluster=local cluster.processes=two", "cluster.processes=two", "must be an integer"),
    # Who, of how many, and where.
    refusal(
        f"{EXPLICIT} cluster.coordinator=h:1",
        "cluster.index=null",
        "different for each process",
        "set cluster.index=0",
    ),
    refusal("cluster=explicit cluster.index=0", "cluster.processes is required", "set cluster.processes="),
    refusal(FIRST, "cluster.coordinator", "set it, such as cluster.coordinator="),
    refusal(f"{FIRST} cluster.coordinator=null", "cluster.coordinator=null", "host and port of process 0"),
    refusal(f"{FIRST} cluster.coordinator=host", "cluster.coordinator=host", "host:port"),
    refusal(f"{FIRST} cluster.coordinator=:29400", "cluster.coordinator=:29400", "host:port"),
    refusal(
        f"{FIRST} cluster.coordinator=h:70000", "cluster.coordinator=h:70000", "cluster.coordinator=10.0.0.1:29400"
    ),
    refusal(f"{HERE} cluster.index=2", "cluster.index=2", "0 to 1, as there are 2 processes"),
    refusal(f"{HERE} cluster.index=-1", "cluster.index=-1", "must be at least 0"),
    refusal(
        f"{HERE} cluster.interface=nope0",
        "cluster.interface=nope0",
        "an IPv4 address (lo",
        "remove cluster.interface",
    ),
    refusal(
        f"{HERE} cluster.interface=192.0.2.1",
        "cluster.interface=192.0.2.1",
        "an IPv4 address (lo",
        "remove cluster.interface",
    ),
    refusal(
        "cluster=auto", "cluster=auto: no scheduler detected", "Slurm, Open MPI, torchrun and Kubernetes are not set"
    ),
    refusal(
        "mesh=batch2 engine=jax cluster=auto cluster.index=0 cluster.processes=2",
        "cluster.coordinator=null",
        "host and port of process 0",
    ),
    refusal("mesh=batch2 cluster=local", "engine=keras_dtensor", "trains in one process only", "set engine=jax"),
    refusal("mesh=batch2 cluster=local engine=core_dtensor model=mlp_core", "engine=core_dtensor", "set engine=jax"),
    # The rest of the group.
    refusal("mesh=batch2 cluster=local cluster.timeout=0", "cluster.timeout=0.0", "from 1 to 1e+06 seconds"),
    refusal("mesh=batch2 cluster=local cluster.timeout=nan", "cluster.timeout=nan", "from 1 to 1e+06 seconds"),
    refusal(
        "mesh=batch2 cluster=local cluster.start_timeout=1e7", "cluster.start_timeout=10000000.0", "from 1 to 1e+06"
    ),
    refusal("mesh=batch2 mesh.device=tpu cluster=local", "mesh.device=tpu"),
]


@pytest.fixture(scope="module")
def refused(
    tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> dict[tuple[str, ...], dict[str, Any]]:
    return refuse_all(chosen_cases(request), tmp_path_factory.mktemp("refused"))


@pytest.mark.parametrize("case", nightly_except(REFUSALS[::3], REFUSALS), ids=name)
def test_a_cluster_that_can_not_work_is_refused_in_one_line(
    case: Refusal, refused: dict[tuple[str, ...], dict[str, Any]]
) -> None:
    result = refused[case.args]
    assert not result["reached"], "the command ran"
    assert result["code"] == 2
    assert_refused(case, result["out"], result["err"])
    assert not result["left"]


SLURM = {"SLURM_JOB_ID": "7", "SLURM_PROCID": "1", "SLURM_STEP_NODELIST": "gpu[07-08]", "SLURM_STEP_NUM_TASKS": "2"}


@pytest.mark.parametrize(
    ("variables", "keys", "said"),
    [
        (SLURM | {"SLURM_PROCID": "2"}, {}, "cluster.index=2: must be from 0 to 1"),
        (
            {"JOB_COMPLETION_INDEX": "1"},
            {},
            "cluster.processes=null: needs the number of processes, which Kubernetes does not",
        ),
        ({"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2"}, {}, "cluster.coordinator=null:"),
    ],
)
def test_what_a_scheduler_leaves_open_or_contradicts_is_refused(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], keys: dict[str, Any], said: str
) -> None:
    for key, value in variables.items():
        monkeypatch.setenv(key, value)
    with pytest.raises(ConfigError) as caught:
        place.find(ClusterConfig("auto", **keys))
    assert str(caught.value).startswith(said)

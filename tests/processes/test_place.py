"""Which process this is, read from the variables that schedulers set."""

import socket

import pytest

from runner.cluster.place import Place, count, find, first_node
from runner.config.schema import ClusterConfig
from runner.errors import ConfigError

AUTO = ClusterConfig(name="auto")
TYPED = ClusterConfig(name="auto", processes=5, index=4, coordinator="[fd00::1]:30000")
SLURM = {
    "SLURM_JOB_ID": "1234",
    "SLURM_STEP_ID": "2",
    "SLURM_PROCID": "3",
    "SLURM_NTASKS": "16",
    "SLURM_STEP_NUM_TASKS": "8",
    "SLURM_STEP_NUM_NODES": "2",
    "SLURM_STEP_NODELIST": "gpu[007-008]",
}
OPEN_MPI = {
    "OMPI_COMM_WORLD_RANK": "1",
    "OMPI_COMM_WORLD_SIZE": "4",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
    "OMPI_MCA_orte_hnp_uri": "1871446016.0;tcp://10.0.0.7,172.17.0.1:46331",
}
TORCHRUN = {"RANK": "5", "WORLD_SIZE": "6", "MASTER_ADDR": "10.0.0.9", "MASTER_PORT": "29400"}
OTHERS = ("TORCHELASTIC_RUN_ID", "LOCAL_WORLD_SIZE", "GROUP_WORLD_SIZE", "PMIX_NAMESPACE", "SLURM_NNODES")
KUBERNETES = {"JOB_COMPLETION_INDEX": "2", "HOSTNAME": "train-2"}


@pytest.fixture(autouse=True)
def no_scheduler(monkeypatch: pytest.MonkeyPatch) -> None:
    for key in (*SLURM, *OPEN_MPI, *TORCHRUN, *KUBERNETES, *OTHERS):
        monkeypatch.delenv(key, raising=False)


def found(monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], config: ClusterConfig = AUTO) -> Place:
    for key, value in variables.items():
        monkeypatch.setenv(key, value)
    there = find(config)
    assert there is not None
    return there


@pytest.mark.parametrize(
    ("variables", "config", "expected"),
    [
        (SLURM, AUTO, {"index": 3, "count": 8, "host": "gpu007", "source": "Slurm"}),  # of the step, not of its job
        (OPEN_MPI, AUTO, {"index": 1, "count": 4, "host": "10.0.0.7", "source": "Open MPI"}),
        (OPEN_MPI | {"OMPI_COMM_WORLD_LOCAL_SIZE": "4"}, AUTO, {"host": "127.0.0.1"}),  # all on one machine
        (TORCHRUN, AUTO, {"index": 5, "count": 6, "host": "10.0.0.9", "port": 29_400}),
        (TORCHRUN | {"TORCHELASTIC_RUN_ID": "none"}, AUTO, {"port": 29_401}),  # it listens there itself
        (TORCHRUN | {"LOCAL_WORLD_SIZE": "6"}, AUTO, {"host": "127.0.0.1"}),
        (SLURM, TYPED, {"index": 4, "count": 5, "host": "fd00::1", "port": 30_000}),
    ],
)
def test_a_launcher_tells_the_place_and_what_is_typed_wins(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], config: ClusterConfig, expected: dict[str, object]
) -> None:
    there = found(monkeypatch, variables, config)
    assert {key: getattr(there, key) for key in expected} == expected


@pytest.mark.parametrize(
    ("nodes", "first"),
    [
        ("node", "node"),
        ("node1,node2", "node1"),
        ("gpu[007-009,12],login", "gpu007"),
        ("r1[3,5]", "r13"),
        ("rack[2-3]-node", "rack2-node"),
        ("a-b.example.org", "a-b.example.org"),
    ],
)
def test_the_first_of_slurms_nodes_is_read_from_its_list(nodes: str, first: str) -> None:
    assert first_node(nodes) == first


@pytest.mark.parametrize("outer", [SLURM, OPEN_MPI])
def test_torchrun_within_another_launcher_has_started_the_process(
    monkeypatch: pytest.MonkeyPatch, outer: dict[str, str]
) -> None:
    tasks = outer.get("SLURM_STEP_NUM_TASKS", "4")
    torchrun = TORCHRUN | {"TORCHELASTIC_RUN_ID": "none", "GROUP_WORLD_SIZE": tasks, "WORLD_SIZE": "16"}
    there = found(monkeypatch, outer | torchrun)
    assert (there.index, there.count, there.host, there.source) == (5, 16, "10.0.0.9", "torchrun")
    one_task = {"SLURM_STEP_NUM_TASKS": "1", "OMPI_COMM_WORLD_SIZE": "1"}
    kept = {key: value for key, value in one_task.items() if key in outer}
    assert found(monkeypatch, outer | TORCHRUN | kept).source == "torchrun"


@pytest.mark.parametrize("outer", [SLURM, OPEN_MPI])
def test_launchers_that_disagree_are_an_error(monkeypatch: pytest.MonkeyPatch, outer: dict[str, str]) -> None:
    said = r"cluster=auto: .* tasks, but RANK=5 and WORLD_SIZE=6 are set.*; unset RANK.* --nnodes and one --rdzv"
    each_alone = {"TORCHELASTIC_RUN_ID": "none"}
    for variables in ({}, each_alone, each_alone | {"GROUP_WORLD_SIZE": "1"}):
        with pytest.raises(ConfigError, match=said):
            found(monkeypatch, outer | TORCHRUN | variables)


def test_kubernetes_tells_the_index_and_a_person_the_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "getfqdn", lambda _: "train-2.train.default.svc.cluster.local")
    with pytest.raises(
        ConfigError, match=r"cluster\.processes=null: needs the number of processes, which Kubernetes does not"
    ):
        found(monkeypatch, KUBERNETES)
    there = found(monkeypatch, KUBERNETES, ClusterConfig(name="auto", processes=4))
    assert (there.index, there.count, there.host) == (2, 4, "train-0.train.default.svc.cluster.local")


@pytest.mark.parametrize("name", ["local", "auto", "explicit"])
def test_the_number_of_processes_is_all_that_a_plan_needs(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert count(ClusterConfig(name, processes=4)) == 4
    for key, value in TORCHRUN.items():
        monkeypatch.setenv(key, value)
    assert count(AUTO) == 6


@pytest.mark.parametrize("name", ["auto", "explicit"])
def test_a_process_that_does_not_know_its_place_is_an_error(name: str) -> None:
    with pytest.raises(ConfigError, match=r"cluster(=auto|\.index=null):"):
        find(ClusterConfig(name, processes=4))
    with pytest.raises(ConfigError, match=r"cluster\.coordinator=null:"):
        find(ClusterConfig(name, processes=4, index=1))
    with pytest.raises(ConfigError, match=r"cluster(=auto|\.processes=null):"):
        count(ClusterConfig(name))

"""Which process this is, read from the variables that schedulers set."""

from __future__ import annotations

import socket

import pytest

from runner.config.schema import ClusterConfig
from runner.errors import ConfigError
from runner.processes import place
from runner.processes.place import Place, find, first_node, scheduled

AUTO = ClusterConfig(name="auto")
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
OTHERS = ("TORCHELASTIC_RUN_ID", "GROUP_WORLD_SIZE", "PMIX_NAMESPACE", "SLURM_NNODES")
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


def test_slurm_tells_a_steps_tasks_and_not_its_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    there = found(monkeypatch, SLURM)
    assert (there.index, there.count, there.host, there.source) == (3, 8, "gpu007", "Slurm")


def test_tasks_of_one_slurm_node_meet_over_loopback_whatever_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    one_node = SLURM | {"SLURM_STEP_NUM_NODES": "1", "SLURM_STEP_NODELIST": "a-name-that-resolves-nowhere"}
    assert found(monkeypatch, one_node).host == "127.0.0.1"


def test_steps_of_a_slurm_job_meet_at_ports_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = (found(monkeypatch, SLURM | {"SLURM_STEP_ID": step}) for step in ("0", "1"))
    other = found(monkeypatch, SLURM | {"SLURM_JOB_ID": "1235", "SLURM_STEP_ID": "0"})
    assert len({first.port, second.port, other.port}) == 3
    assert all(20_000 <= one.port < 2**15 for one in (first, second, other)), "below the ports that systems give away"


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


def test_open_mpi_tells_where_its_head_is(monkeypatch: pytest.MonkeyPatch) -> None:
    there = found(monkeypatch, OPEN_MPI)
    assert (there.index, there.count, there.host, there.source) == (1, 4, "10.0.0.7", "Open MPI")


def test_open_mpi_on_one_machine_is_reached_over_loopback(monkeypatch: pytest.MonkeyPatch) -> None:
    assert found(monkeypatch, OPEN_MPI | {"OMPI_COMM_WORLD_LOCAL_SIZE": "4"}).host == "127.0.0.1"


def test_open_mpi_under_slurm_is_open_mpis(monkeypatch: pytest.MonkeyPatch) -> None:
    there = found(monkeypatch, SLURM | OPEN_MPI)
    assert (there.index, there.count, there.source) == (1, 4, "Open MPI")


def test_torchrun_tells_the_address_but_listens_there_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    there = found(monkeypatch, TORCHRUN)
    assert (there.index, there.count, there.host, there.port) == (5, 6, "10.0.0.9", 29_400)
    assert found(monkeypatch, TORCHRUN | {"TORCHELASTIC_RUN_ID": "none"}).port == 29_401


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
    with pytest.raises(
        ConfigError, match=r"cluster=auto: .* tasks, but RANK=5 and WORLD_SIZE=6 are set.*; unset RANK"
    ):
        found(monkeypatch, outer | TORCHRUN)
    each_alone = TORCHRUN | {"TORCHELASTIC_RUN_ID": "none", "GROUP_WORLD_SIZE": "1"}
    with pytest.raises(ConfigError, match=r"give torchrun --nnodes and one --rdzv-endpoint"):
        found(monkeypatch, outer | each_alone)


@pytest.mark.parametrize("outer", [SLURM, OPEN_MPI])
def test_tasks_of_launchers_that_disagree_are_still_several(outer: dict[str, str]) -> None:
    there = scheduled(outer | TORCHRUN)  # with cluster=single it is what the warning of separate runs says
    assert there is not None
    assert (there.source, there.count) == (("Slurm", 8) if outer is SLURM else ("Open MPI", 4))


@pytest.mark.parametrize("key", ["RANK", "WORLD_SIZE", "MASTER_PORT"])
@pytest.mark.parametrize("text", ["x", "", "-1", "1.5"])
def test_a_variable_that_is_no_integer_is_one_line_that_names_it(
    monkeypatch: pytest.MonkeyPatch, key: str, text: str
) -> None:
    with pytest.raises(ConfigError, match=rf"the variable {key}={text}.* must be an integer; unset {key}"):
        found(monkeypatch, TORCHRUN | {key: text})
    assert scheduled(TORCHRUN | {key: text}) is None


def test_torchruns_variables_that_a_script_sets_by_slurms_are_slurms(monkeypatch: pytest.MonkeyPatch) -> None:
    there = found(monkeypatch, SLURM | TORCHRUN | {"RANK": "3", "WORLD_SIZE": "8"})
    assert (there.index, there.count, there.source) == (3, 8, "Slurm")


def test_kubernetes_tells_the_index_and_a_person_the_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "getfqdn", lambda _: "train-2.train.default.svc.cluster.local")
    with pytest.raises(
        ConfigError, match=r"cluster\.processes=null: needs the number of processes, which Kubernetes does not"
    ):
        found(monkeypatch, KUBERNETES)
    there = found(monkeypatch, KUBERNETES, ClusterConfig(name="auto", processes=4))
    assert (there.index, there.count, there.host) == (2, 4, "train-0.train.default.svc.cluster.local")


def test_what_is_typed_wins_over_what_a_scheduler_tells(monkeypatch: pytest.MonkeyPatch) -> None:
    typed = ClusterConfig(name="auto", processes=5, index=4, coordinator="[fd00::1]:30000")
    there = found(monkeypatch, SLURM, typed)
    assert (there.index, there.count, there.host, there.port) == (4, 5, "fd00::1", 30_000)


def test_a_single_task_is_a_run_of_one_process(monkeypatch: pytest.MonkeyPatch) -> None:
    for key, value in (SLURM | {"SLURM_STEP_NUM_TASKS": "1", "SLURM_PROCID": "0"}).items():
        monkeypatch.setenv(key, value)
    assert find(AUTO) is None


def test_auto_without_a_scheduler_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"cluster=auto: no scheduler detected .*the variables of Slurm"):
        find(AUTO)


def test_an_index_beyond_the_processes_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match=r"cluster\.index=3: must be from 0 to 1"):
        found(monkeypatch, SLURM, ClusterConfig(name="auto", processes=2))


def test_slurms_variables_alone_make_no_run_of_several() -> None:
    """A config of one process is one, whatever started it; who asks for it is told of the others."""
    assert scheduled(SLURM) == Place(3, 8, "gpu007", scheduled_port(), source="Slurm", job="Slurm 19746")
    assert scheduled({"SLURM_JOB_ID": "1234", "SLURM_PROCID": "0"}) is None, "a script's own shell is no task"
    assert scheduled({}) is None


def scheduled_port() -> int:
    return 20_000 + (1234 * 16 + 2) % 4096


def test_a_place_is_presumed_for_jobs_that_start_later() -> None:
    with place.presumed(4, "Slurm"):
        assert place.count(AUTO) == 4
    with pytest.raises(ConfigError):
        place.count(AUTO)

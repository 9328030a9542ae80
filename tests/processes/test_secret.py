"""Where the secret of a run's processes comes from, and that only who knows it is heard."""

from __future__ import annotations

import json
import socket
import stat
import threading
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from runner.config.schema import ClusterConfig
from runner.errors import ConfigError
from runner.processes import coordinator, messages, secret
from runner.processes.coordinator import Coordinator
from runner.processes.launch import free_port
from runner.processes.member import Member
from runner.processes.messages import LONGEST, DeniedError
from runner.processes.place import Place
from runner.processes.team import ProcessError

EXPLICIT = ClusterConfig(name="explicit")
PLACE = Place(0, 2, "127.0.0.1", 1)


@pytest.fixture(autouse=True)
def _home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv(secret.VARIABLE, raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "home"))


def test_processes_that_start_together_share_a_secret_that_the_first_of_them_makes(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        tokens = set(pool.map(lambda _: secret.token(EXPLICIT, PLACE), range(32)))
    assert len(tokens) == 1
    folder = tmp_path / "home" / "runner"
    assert [path.name for path in folder.iterdir()] == ["cluster-secret"], "nothing half made is left"
    assert stat.S_IMODE((folder / "cluster-secret").stat().st_mode) == 0o600
    assert (folder / "cluster-secret").read_text().strip() not in tokens.pop(), "the file's own secret is not used"


def test_jobs_of_a_user_have_secrets_of_their_own_and_the_launchers_is_taken_as_it_is() -> None:
    jobs = [Place(0, 2, "127.0.0.1", 1, job=job) for job in ("", "Slurm 16", "Slurm 17")]
    assert len({secret.token(EXPLICIT, job) for job in jobs}) == 3
    assert secret.token(EXPLICIT, Place(0, 2, "127.0.0.1", 1, "launched")) == "launched"


def test_a_file_and_a_variable_are_taken_instead(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "secret"
    file.write_text("a secret of sixteen\n")
    file.chmod(0o600)
    of_file = secret.token(ClusterConfig(name="explicit", secret_file=str(file)), PLACE)
    monkeypatch.setenv(secret.VARIABLE, "a secret of sixteen")
    assert secret.token(EXPLICIT, PLACE) == of_file
    assert not (tmp_path / "home").exists()


@pytest.mark.parametrize(
    ("mode", "text", "said"),
    [
        (0o644, "a secret of sixteen", "other users can access it; run chmod 600"),
        (0o620, "a secret of sixteen", "other users can access it; run chmod 600"),
        (0o600, "too short", "must have 16 to 4096 bytes, but has 9"),
        (0o600, "", "but has 0"),
        (0o600, "x" * 5000, "must have 16 to 4096 bytes"),
        (None, "", "can't be read (No such file or directory)"),
    ],
)
def test_a_file_that_keeps_no_secret_is_rejected(tmp_path: Path, mode: int | None, text: str, said: str) -> None:
    file = tmp_path / "secret"
    if mode is not None:
        file.write_text(text)
        file.chmod(mode)
    with pytest.raises(ConfigError) as caught:
        secret.token(ClusterConfig(name="explicit", secret_file=str(file)), PLACE)
    assert said in str(caught.value)
    assert not text or text not in str(caught.value)


def test_a_short_variable_is_rejected_and_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(secret.VARIABLE, "hunter2")
    with pytest.raises(ConfigError, match=r"RUNNER_CLUSTER_SECRET=\*\*\*: must have 16") as caught:
        secret.token(EXPLICIT, PLACE)
    assert "hunter2" not in str(caught.value)


def test_kubernetes_needs_a_secret_of_its_own() -> None:
    with pytest.raises(ConfigError, match="RUNNER_CLUSTER_SECRET"):
        secret.token(ClusterConfig(name="auto"), Place(0, 2, "a", 1, source="Kubernetes"))


def test_a_place_does_not_show_its_secret() -> None:
    assert "launched" not in repr(Place(0, 2, "127.0.0.1", 1, "launched"))


# The coordinator, in this process.


@pytest.fixture
def port() -> int:
    listening = socket.create_server(("127.0.0.1", 0))
    Coordinator(listening, 2, "the secret", 60.0)
    return int(listening.getsockname()[1])


def peer(port: int, index: int, token: str = "the secret") -> tuple[socket.socket, Any]:
    connection = socket.create_connection(("127.0.0.1", port), timeout=20)
    messages.authenticate(connection, token)
    about = {"host": "he\x1b[31mre", "pid": index, "agrees": {}}
    joins = {"kind": "join", "index": index, "count": 2, "about": about}
    connection.sendall(json.dumps(joins).encode() + b"\n")
    return connection, connection.makefile("rb")


def heard(lines: Any, kind: str) -> Mapping[str, Any]:
    found: Mapping[str, Any] = next(said for said in map(json.loads, lines) if said["kind"] == kind)
    return found


def test_who_has_another_secret_is_denied(port: int) -> None:
    with pytest.raises(DeniedError):
        peer(port, 0, "another secret")


def test_a_process_0_that_does_not_know_the_secret_is_told_nothing() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        said = bytearray()

        def pretend() -> None:
            connection, _ = listening.accept()
            with connection:
                connection.sendall(b'{"challenge": "00"}\n')
                said.extend(connection.recv(messages.GREETING))
                connection.sendall(b'{"proof": "00"}\n')
                said.extend(connection.recv(messages.GREETING))

        thread = threading.Thread(target=pretend)
        thread.start()
        place = Place(1, 2, "127.0.0.1", listening.getsockname()[1], "the secret")
        with pytest.raises(ProcessError, match="different secrets"):
            Member(place).join({"the config": "private"}, 5.0)
        thread.join(20)
    assert b"the secret" not in said
    assert b"private" not in said


def test_a_second_process_of_an_index_ends_no_run_that_has_begun_and_text_is_printable(port: int) -> None:
    first, of_first = peer(port, 0)
    second, of_second = peer(port, 1)
    heard(of_first, "begin")
    heard(of_second, "begin")
    newcomer, of_newcomer = peer(port, 1)
    why = heard(of_newcomer, "ended")["why"]
    assert why.startswith("two processes have index 1: here, pid 1, and here, pid 1")
    for connection, value in ((first, 1), (second, 2)):
        connection.sendall(json.dumps({"kind": "all", "key": "k", "value": value}).encode() + b"\n")
    assert heard(of_first, "all")["value"] == [1, 2], "the run has not ended"
    for connection in (first, second, newcomer):
        connection.close()


def test_who_knows_the_secret_comes_in_through_a_flood_of_those_who_do_not(
    port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(coordinator, "PROOF_S", 600.0)  # so that only the number of those who wait limits them
    strangers = [socket.create_connection(("127.0.0.1", port)) for _ in range(3 * coordinator.MOST_WAITING)]
    first, _ = peer(port, 0)
    deadline = time.monotonic() + 20
    closed = 0
    while closed < 2 * coordinator.MOST_WAITING and time.monotonic() < deadline:
        closed = sum(_is_closed(stranger) for stranger in strangers)
    assert closed >= 2 * coordinator.MOST_WAITING
    for connection in (first, *strangers):
        connection.close()


def _is_closed(connection: socket.socket) -> bool:
    connection.settimeout(0.0)
    try:
        while connection.recv(messages.GREETING):
            pass
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True


def test_long_messages_arrive_and_longer_ones_are_rejected_by_their_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two of 34 MiB together are more than one message may have; smaller limits show the same in less time."""
    limit = 1 << 20
    monkeypatch.setattr(messages, "LONGEST", limit)
    monkeypatch.setattr(coordinator, "LONGEST", limit)
    where = free_port()
    members = [Member(Place(index, 2, "127.0.0.1", where, "the secret")) for index in range(2)]
    for member in members:
        member.begin_leaving()  # so that the end of the coordinator is not that of the tests
    value = "x" * (limit * 34 // 64)
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda member: member.join({}, 30.0), members))
        assert list(pool.map(lambda member: member.all_gather("both", value), members)) == [[value, value]] * 2
    with pytest.raises(ProcessError, match=r"the message 'long' has 1\.0 MiB, but a message between processes has"):
        members[1].all_gather("long", "x" * limit)
    assert LONGEST == 64 << 20

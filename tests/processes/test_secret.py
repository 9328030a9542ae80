"""Where the secret of a run's processes comes from, and that only who knows it is heard."""

import json
import socket
import stat
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from runner.cluster import messages, secret
from runner.cluster.coordinator import Coordinator
from runner.cluster.member import Member
from runner.cluster.messages import DeniedError
from runner.cluster.place import Place
from runner.cluster.team import ProcessError
from runner.errors import ConfigError

PLACE = Place(0, 2, "127.0.0.1", 1)


@pytest.fixture(autouse=True)
def _home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv(secret.VARIABLE, raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "home"))


def test_processes_that_start_together_share_a_secret_that_the_first_of_them_makes(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        tokens = set(pool.map(lambda _: secret.token(PLACE), range(32)))
    assert len(tokens) == 1
    folder = tmp_path / "home" / "runner"
    assert [path.name for path in folder.iterdir()] == ["cluster-secret"], "nothing half made is left"
    assert stat.S_IMODE((folder / "cluster-secret").stat().st_mode) == 0o600
    assert (folder / "cluster-secret").read_text().strip() not in tokens.pop(), "the file's own secret is not used"


def test_jobs_of_a_user_have_secrets_of_their_own_and_the_launchers_is_taken_as_it_is() -> None:
    jobs = [Place(0, 2, "127.0.0.1", 1, job=job) for job in ("", "Slurm 16", "Slurm 17")]
    assert len({secret.token(job) for job in jobs}) == 3
    assert secret.token(Place(0, 2, "127.0.0.1", 1, "launched")) == "launched"


def test_a_variable_is_taken_instead(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(secret.VARIABLE, "a secret of sixteen")
    secret.token(PLACE)
    assert not (tmp_path / "home").exists()


def test_a_variable_that_nobody_filled_in_is_no_missing_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(secret.VARIABLE, "")
    with pytest.raises(ConfigError, match=r"RUNNER_CLUSTER_SECRET=.*must have 16 to 4096 bytes, but has 0"):
        secret.token(PLACE)
    assert not (tmp_path / "home").exists()


@pytest.mark.parametrize(
    ("mode", "text", "said"),
    [
        (0o644, "a secret of sixteen", "other users can access this secret; run chmod 600"),
        (0o600, "too short", "cluster-secret=***: must have 16 to 4096 bytes, but has 9"),
    ],
)
def test_a_file_that_keeps_no_secret_is_rejected(tmp_path: Path, mode: int, text: str, said: str) -> None:
    file = tmp_path / "home" / "runner" / "cluster-secret"
    file.parent.mkdir(parents=True)
    file.write_text(text)
    file.chmod(mode)
    with pytest.raises(ConfigError) as caught:
        secret.token(PLACE)
    assert said in str(caught.value)
    assert text not in str(caught.value)


def test_kubernetes_needs_a_secret_of_its_own() -> None:
    with pytest.raises(ConfigError, match="RUNNER_CLUSTER_SECRET"):
        secret.token(Place(0, 2, "a", 1, source="Kubernetes"))


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


def test_who_has_another_secret_is_denied(port: int) -> None:
    with pytest.raises(DeniedError):
        peer(port, 0, "another secret")


def test_a_process_that_comes_twice_ends_all_and_both_are_named(port: int) -> None:
    come = [peer(port, 0), peer(port, 0)]
    for connection, lines in come:
        why = next(said["why"] for said in map(json.loads, lines) if said["kind"] == "ended")
        assert why.startswith("two processes have index 0: here, pid 0, and here, pid 0; "), "no escapes"
        connection.close()


def test_a_process_of_another_number_of_processes_is_told_at_once(port: int) -> None:
    connection, lines = peer(port, 2)
    assert "process 0 has cluster.processes=2, so it has no process 2" in json.loads(lines.readline())["why"]
    connection.close()


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

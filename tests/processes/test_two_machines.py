"""Two machines, as two network namespaces: a run listens at their cable alone, and ends when it is pulled."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from tests.proc import until
from tests.processes.started import ROOT, WITHIN_S

pytestmark = [pytest.mark.slow, pytest.mark.nightly]

ADDRESSES = ("10.201.7.1", "10.201.7.2")
LONG_S = 150.0  # for a start on a machine whose cores are taken
RUN = [
    *("engine=jax", "dataset=digits", "mesh=batch2", "trainer.epochs=100000", "trainer.progress=none"),
    *("trainer.checkpoint.every_steps=20", "tracking=none"),
    *("cluster=explicit", "cluster.processes=2", f"cluster.coordinator={ADDRESSES[0]}:29400"),
]


def ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True, timeout=20)


@contextmanager
def two_machines() -> Iterator[tuple[str, str]]:
    """Yields the names of two network namespaces, of which only their cable leads out."""
    if shutil.which("ip") is None:
        pytest.skip("two machines need the command ip, of iproute2")
    first, second = names = (f"r{os.getpid()}a", f"r{os.getpid()}b")
    with ExitStack() as made:
        try:
            for name in names:
                ip("netns", "add", name)
                made.callback(ip, "netns", "del", name)
            ip("link", "add", "cable", "netns", first, "type", "veth", "peer", "name", "cable", "netns", second)
            for name, address in zip(names, ADDRESSES, strict=True):
                ip("-n", name, "address", "add", f"{address}/24", "dev", "cable")
                ip("-n", name, "link", "set", "lo", "up")
                ip("-n", name, "link", "set", "cable", "up")
        except subprocess.CalledProcessError as error:
            pytest.skip(f"two machines need network namespaces, which can't be made here: {error.stderr.strip()}")
        yield names


def listening(pid: int) -> set[str]:
    """Returns the IPv4 addresses at which sockets of a process listen."""
    own = {str(one.readlink()) for one in Path(f"/proc/{pid}/fd").iterdir()}
    found = set()
    for line in Path(f"/proc/{pid}/net/tcp").read_text().splitlines()[1:]:
        local, _, state, *rest = line.split()[1:]
        if state == "0A" and f"socket:[{rest[5]}]" in own:
            found.add(".".join(str(byte) for byte in reversed(bytes.fromhex(local.partition(":")[0]))))
    return found


def test_both_machines_listen_at_the_link_alone_and_end_when_it_is_down(tmp_path: Path) -> None:
    run = [*RUN, f"hydra.run.dir={tmp_path / 'run'}", f"trainer.checkpoint.folder={tmp_path / 'checkpoints'}"]
    with two_machines() as names, ExitStack() as ends:
        processes = []
        for index, name in enumerate(names):
            command = ["ip", "netns", "exec", name, sys.executable, "-m", "runner", *run, f"cluster.index={index}"]
            err = ends.enter_context((tmp_path / f"err{index}").open("wb"))
            environment = {**os.environ, "PYTHONPATH": str(ROOT)}
            one = subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=subprocess.DEVNULL, stderr=err)
            ends.callback(one.wait)
            ends.callback(one.kill)
            processes.append(one)
        until(lambda: any(tmp_path.glob("checkpoints/*/step-*")) or processes[0].poll() is not None, LONG_S)
        listened = [listening(one.pid) for one in processes]
        ip("-n", names[1], "link", "set", "cable", "down")
        assert [one.wait(WITHIN_S) for one in processes] == [1, 1]
    assert listened[0] == {ADDRESSES[0]}
    assert listened[1] <= {ADDRESSES[1], "127.0.0.1"}  # JAX's relay, which the process itself asks
    first, second = ((tmp_path / f"err{index}").read_text().splitlines()[-1] for index in (0, 1))
    assert first.endswith(") has not answered for 15 s")
    assert second == "error: process 0 has not answered for 15 s"

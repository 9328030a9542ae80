"""What a run of two processes listens on: loopback alone."""

import os
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

_LONGEST_S = 240.0  # of a start on a machine that others share


def listening(process: psutil.Process) -> set[str]:
    """Returns the addresses at which a process and those below it listen."""
    found = set()
    for one in (process, *process.children(recursive=True)):
        with suppress(psutil.Error):  # it has ended meanwhile
            found |= {each.laddr.ip for each in one.net_connections() if each.status == psutil.CONN_LISTEN}
    return found


@pytest.mark.nightly
def test_a_run_of_two_processes_listens_on_loopback_alone(tmp_path: Path) -> None:
    command = [
        *(sys.executable, "-m", "runner", "dataset=digits", "mesh=batch2", "engine=jax", "cluster=local"),
        *("trainer.epochs=100000", "trainer.progress=none", "trainer.checkpoint.enabled=false", "tracking=none"),
        f"hydra.run.dir={tmp_path / 'run'}",
    ]
    with (tmp_path / "said").open("wb") as said:
        started = subprocess.Popen(command, cwd=tmp_path, env=dict(os.environ), stdout=said, stderr=said)
    addresses: set[str] = set()
    try:
        # The last port opens with the first collective, a moment after the engine is connected.
        deadline = time.monotonic() + _LONGEST_S
        until = deadline
        while time.monotonic() < until:
            assert started.poll() is None, (tmp_path / "said").read_text()
            addresses |= listening(psutil.Process(started.pid))
            if until == deadline and "mesh batch=2" in (tmp_path / "said").read_text(errors="replace") and addresses:
                until = time.monotonic() + 20.0
            time.sleep(0.2)
        assert until < deadline, "it did not train"
    finally:
        started.terminate()
        started.wait(60)
    assert addresses
    assert addresses <= {"127.0.0.1", "::1", "::ffff:127.0.0.1"}

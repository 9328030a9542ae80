"""The real command as several processes, until they have come together: no library is imported before that."""

import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

from runner.cluster.launch import free_port
from tests.processes.started import WITHIN_S
from tests.refusals import without_libraries

pytestmark = pytest.mark.slow

COMMON = ("mesh=batch2", "dataset=digits", "tracking=none", "cluster=explicit", "cluster.processes=2", "engine=jax")


def start(folder: Path, *arguments: str) -> subprocess.Popen[str]:
    """Starts a command in a folder of its own, where importing anything heavy ends it with another line."""
    path = without_libraries(folder)
    kept = {key: value for key, value in os.environ.items() if key != "HYDRA_FULL_ERROR"}
    return subprocess.Popen(  # a real start: of what is imported when
        [sys.executable, "-m", "runner", *arguments, f"hydra.run.dir={folder / 'run'}"],
        cwd=folder,
        env=kept | {"PYTHONPATH": path},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_another_config_is_named_by_its_key_before_anything_is_written(tmp_path: Path) -> None:
    where = f"cluster.coordinator=127.0.0.1:{free_port()}"
    started = []
    for index in range(2):
        epochs = f"trainer.epochs={2 + index}"
        started.append(start(tmp_path / str(index), *COMMON, where, f"cluster.index={index}", epochs))
    named = f"process 1 ({platform.node()}, pid {started[1].pid})"
    try:
        for index, one in enumerate(started):
            out, err = one.communicate(timeout=2 * WITHIN_S)
            assert (one.returncode, out) == (1, "")
            assert err == f"error: {named} and process 0 differ in trainer.epochs: 3 and 2\n"
            assert not (tmp_path / str(index) / "run").exists()
    finally:
        for one in started:
            one.kill()
            one.wait()

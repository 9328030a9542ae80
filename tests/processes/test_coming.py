"""The real command as several processes, until they have come together: no library is imported before that."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from runner.cluster.launch import free_port
from tests.processes.started import ROOT, WITHIN_S

pytestmark = pytest.mark.slow

HEAVY = ("tensorflow", "tf_keras", "keras", "jax", "mlflow", "sklearn")
COMMON = ("mesh=batch2", "dataset=digits", "tracking=none", "cluster=explicit", "cluster.processes=2", "engine=jax")


def start(folder: Path, *arguments: str) -> subprocess.Popen[str]:
    """Starts a command in a folder of its own, where importing anything heavy ends it with another line."""
    blocked = folder / "blocked"
    blocked.mkdir(parents=True)
    for name in HEAVY:
        (blocked / f"{name}.py").write_text(f"raise SystemExit('imported {name}')\n")
    kept = {key: value for key, value in os.environ.items() if key != "HYDRA_FULL_ERROR"}
    return subprocess.Popen(  # a real start: of what is imported when
        [sys.executable, "-m", "runner", *arguments, f"hydra.run.dir={folder / 'run'}"],
        cwd=folder,
        env=kept | {"PYTHONPATH": f"{blocked}{os.pathsep}{ROOT}"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def ended(processes: Sequence[subprocess.Popen[str]]) -> list[tuple[int, str, list[str]]]:
    """Returns exit codes, and what was said."""
    try:
        said = [one.communicate(timeout=2 * WITHIN_S) for one in processes]
    finally:
        for one in processes:
            one.kill()
            one.wait()
    return [(one.returncode, out, err.splitlines()) for one, (out, err) in zip(processes, said, strict=True)]


def two(folder: Path, first: str, second: str) -> list[str]:
    """Returns the line that both of two processes end with, exit code 1, before they write anything."""
    where = f"cluster.coordinator=127.0.0.1:{free_port()}"
    come = [
        start(folder / "0", *COMMON, where, "cluster.index=0", first),
        start(folder / "1", *COMMON, where, "cluster.index=1", second),
    ]
    lines = []
    for code, out, err in ended(come):
        assert (code, out) == (1, "")
        lines += err
    assert [(folder / name / "run").exists() for name in ("0", "1")] == [False, False]
    pid, here = come[1].pid, platform.node()
    return [line.replace(f"process 1 ({here}, pid {pid})", "process 1") for line in lines]


def test_another_config_is_named_by_its_key(tmp_path: Path) -> None:
    lines = two(tmp_path, "trainer.epochs=2", "trainer.epochs=3")
    assert lines == ["error: process 1 and process 0 differ in trainer.epochs: 3 and 2"] * 2

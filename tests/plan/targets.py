"""The compilers of GPUs and TPUs, installed beside the tests' environment, and plans that call them.

They are not in the tests' environment, because the wheels of CUDA take 4.9 GB and that of TPUs 0.7 GB. The first test
that needs one installs it into `.venv/cuda` or `.venv/tpu`, with the versions of constraints.txt. On 26 November 2026
CUDA took 79 CPU seconds.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
CONSTRAINTS = ROOT / "constraints.txt"
# The download is most of it.
_LONGEST_INSTALL_S = 1500.0


@dataclass(frozen=True)
class Compiler:
    """The packages of one compiler.

    Attributes:
      extra: of pyproject.toml.
      requirement: what the extra adds to the tests' environment.
      disk_bytes: of the wheels and of pip's copies while it unpacks them.
    """

    extra: str
    requirement: str
    disk_bytes: int


GPU = Compiler("cuda", "jax-cuda12-plugin[with-cuda]", 12 << 30)
TPU = Compiler("tpu", "libtpu", 2 << 30)


@dataclass(frozen=True)
class Compiled:
    """A plan by the compiler of the hardware, and what its process took.

    Attributes:
      plan: content of plan.json.
      cpu_seconds: of the process and of those that it started, imports included.
      peak_bytes: the most memory that it had.
    """

    plan: dict[str, Any]
    cpu_seconds: float
    peak_bytes: int

    def memory(self) -> dict[str, int]:
        """Returns one device's bytes by kind."""
        return {part["kind"]: part["bytes"] for part in self.plan["forecast"]["memory"]}


def packages(compiler: Compiler) -> Path:
    """Returns the folder of a compiler's packages, which are installed if they are not there yet.

    A test that calls it is skipped, with the reason, where pip can't get them.
    """
    folder = ROOT / ".venv" / compiler.extra
    # Written last, so that an installation that was killed counts as none. It names the versions.
    complete = folder / "complete"
    pinned = CONSTRAINTS.read_text()
    if complete.exists() and complete.read_text() == pinned:
        return folder
    folder.parent.mkdir(exist_ok=True)
    free = shutil.disk_usage(folder.parent).free
    if free < compiler.disk_bytes:
        pytest.skip(f"{free >> 30} GiB of disk are free, and the wheels of the extra {compiler.extra} need more")
    shutil.rmtree(folder, ignore_errors=True)
    command = [sys.executable, "-m", "pip", "install", "-q", "--no-compile", "--disable-pip-version-check"]
    command += ["-c", str(CONSTRAINTS), "--target", str(folder), compiler.requirement]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_LONGEST_INSTALL_S, check=False)
        reason = [line for line in done.stderr.splitlines() if line.startswith("ERROR")]
        failed = done.returncode != 0
    except subprocess.TimeoutExpired:
        reason = [f"took more than {_LONGEST_INSTALL_S:.0f} s"]
        failed = True
    if failed:
        shutil.rmtree(folder, ignore_errors=True)
        pytest.skip(f"pip can't get the extra {compiler.extra}: {' '.join(reason[:1]) or 'it has failed'}")
    complete.write_text(pinned)
    return folder


def planned(compiler: Compiler, folder: Path, *words: str) -> Compiled:
    """Plans with `plan.compiler=target`, in a process with the compiler's packages.

    Args:
      compiler: of the hardware.
      folder: of the run.
      *words: of the command line.
    """
    paths = os.pathsep.join([str(ROOT), str(packages(compiler))])
    # Programs are compiled each time, because what that takes is measured.
    environment = {**os.environ, "PYTHONPATH": paths, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": ""}
    command = [sys.executable, "-m", "runner.plan", "plan.compiler=target", "engine.compilation_cache=false", *words]
    errors = folder.parent / f"{folder.name}.txt"
    with errors.open("w") as file:
        process = subprocess.Popen(
            [*command, f"hydra.run.dir={folder}"], cwd=folder.parent, env=environment, stdout=file, stderr=file
        )
        # Unlike `Popen.wait`, it also tells what the process took.
        _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0, errors.read_text()[-2000:]
    plan = json.loads((folder / "plan.json").read_text())
    return Compiled(plan, usage.ru_utime + usage.ru_stime, usage.ru_maxrss << 10)

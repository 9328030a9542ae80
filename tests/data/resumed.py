"""A run that is killed in the middle of an epoch and resumed, compared with one that is not."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file

from tests import forks

_COMMON = (
    *("engine=jax", "model=mlp", "model.hidden=[8]", "dataset.batch_size=8", "trainer.steps_per_call=1"),
    *("trainer.checkpoint.every_steps=5", "trainer.checkpoint.best=null", "tracking=none"),
)
# The longest that a run takes while other tests use the machine.
_TIMEOUT_S = 200


def compare(
    tmp_path: Path, per_epoch: int, epochs: int, options: Sequence[str], own: Sequence[Sequence[str]] = ((), (), ())
) -> None:
    """Trains three runs: a whole one, one that is killed inside an epoch, and one that resumes that.

    Args:
      tmp_path: where they write.
      per_epoch: steps of an epoch.
      epochs: of the whole run.
      options: of all three.
      own: of each.
    """
    environment = os.environ | {"XDG_CACHE_HOME": str(tmp_path / "cache")}
    settings = {"env": environment, "cwd": tmp_path, "library": forks.JAX}

    def command(name: str, folder: str, *given: str) -> list[str]:
        folders = (f"trainer.checkpoint.folder={tmp_path / name}", f"hydra.run.dir={tmp_path / folder}")
        return [sys.executable, "-m", "runner", *_COMMON, f"trainer.epochs={epochs}", *options, *folders, *given]

    forks.run(command("whole", "a", *own[0]), check=True, timeout=_TIMEOUT_S, **settings)
    silent = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    with forks.Popen(command("killed", "b", *own[1]), **silent, **settings) as run:
        deadline = time.monotonic() + _TIMEOUT_S
        while not any(_step(path) >= per_epoch + 2 for path in (tmp_path / "killed").rglob("step-*")):
            assert run.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.01)
        run.send_signal(signal.SIGKILL)
    steps = [_step(path) for path in (tmp_path / "killed").rglob("step-*")]
    assert max(steps) < per_epoch * epochs
    assert max(steps) % per_epoch  # inside an epoch
    run_folder = next(path.parent for path in (tmp_path / "killed").rglob("step-*"))
    forks.run(
        command("killed", "c", f"resume={run_folder}", *own[2]),
        check=True,
        timeout=_TIMEOUT_S,
        **settings,
    )
    last = per_epoch * epochs
    whole, resumed = _parameters(tmp_path / "whole", last), _parameters(tmp_path / "killed", last)
    assert whole.keys() == resumed.keys()
    assert any("kernel" in name for name in whole)
    for name in whole.keys() - {"rates"}:  # how fast it was
        np.testing.assert_array_equal(resumed[name], whole[name], err_msg=name)


def _parameters(checkpoints: Path, step: int) -> dict[str, np.ndarray]:
    """Returns the tensors of the last checkpoint below a folder."""
    last = max(checkpoints.rglob("step-*"), key=lambda path: path.name)
    assert last.name.endswith(str(step))
    return {name: array for file in sorted(last.rglob("*.safetensors")) for name, array in load_file(file).items()}


def _step(path: Path) -> int:
    number = path.name.removeprefix("step-")
    return int(number) if number.isdigit() else -1

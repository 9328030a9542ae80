"""A run killed in the middle of an epoch goes on with other workers, and ends with the same parameters bit for bit."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from tests import forks
from tests.data.pictures import folder

STEPS = (
    "dataset.augment=[{name: random_resized_crop, size: [12, 12]}, {name: flip}, {name: color, brightness: 0.2}, "
    "{name: mixup}]"
)
PER_EPOCH, EPOCHS = 6, 8


def _command(photos: Path, *given: str) -> list[str]:
    return [
        sys.executable,
        "-m",
        "runner",
        "engine=jax",
        "mesh=single",
        "model=mlp",
        "model.hidden=[8]",
        "dataset=image_folder",
        f"dataset.path={photos}",
        "dataset.batch_size=8",
        "dataset.test=train",
        STEPS,
        f"trainer.epochs={EPOCHS}",
        "trainer.steps_per_call=1",
        "trainer.checkpoint.every_steps=5",
        "trainer.checkpoint.best=null",
        "tracking=none",
        *given,
    ]


def _parameters(checkpoints: Path) -> dict[str, np.ndarray]:
    """Returns the tensors of the last checkpoint below a folder."""
    last = max(checkpoints.rglob("step-*"), key=lambda path: path.name)
    assert last.name.endswith(str(PER_EPOCH * EPOCHS))
    return {name: array for file in sorted(last.glob("*.safetensors")) for name, array in load_file(file).items()}


@pytest.mark.slow
def test_a_run_killed_inside_an_epoch_and_resumed_with_other_workers_has_the_same_parameters(tmp_path):
    photos = folder(tmp_path / "photos", 50)
    environment = os.environ | {"XDG_CACHE_HOME": str(tmp_path / "cache")}
    options = {"env": environment, "cwd": tmp_path, "library": forks.JAX}

    def words(name: str, *given: str) -> list[str]:
        return _command(photos, f"trainer.checkpoint.folder={tmp_path / name}", *given)

    forks.run(
        words("whole", "dataset.workers=1", f"hydra.run.dir={tmp_path / 'a'}"), check=True, timeout=200, **options
    )
    silent = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    with forks.Popen(
        words("killed", "dataset.workers=2", f"hydra.run.dir={tmp_path / 'b'}"), **silent, **options
    ) as run:
        deadline = time.monotonic() + 200
        while not any(_step(path) >= PER_EPOCH + 2 for path in (tmp_path / "killed").rglob("step-*")):
            assert run.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.01)
        run.send_signal(signal.SIGKILL)
    steps = [_step(path) for path in (tmp_path / "killed").rglob("step-*")]
    assert max(steps) < PER_EPOCH * EPOCHS
    assert max(steps) % PER_EPOCH  # inside an epoch
    run_folder = next(path.parent for path in (tmp_path / "killed").rglob("step-*"))
    again = [f"resume={run_folder}", "dataset.workers=3", f"hydra.run.dir={tmp_path / 'c'}"]
    forks.run([*words("killed"), *again], check=True, timeout=200, **options)
    whole, resumed = _parameters(tmp_path / "whole"), _parameters(tmp_path / "killed")
    assert whole.keys() == resumed.keys()
    assert any("kernel" in name for name in whole)
    for name in whole.keys() - {"rates"}:  # how fast it was
        np.testing.assert_array_equal(resumed[name], whole[name], err_msg=name)


def _step(path: Path) -> int:
    number = path.name.removeprefix("step-")
    return int(number) if number.isdigit() else -1

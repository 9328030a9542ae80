"""Runs of the real command that are killed end, resumed, as the run that was never killed."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import numpy as np
import pytest

from runner.checkpoint import storage
from runner.checkpoint.storage import Checkpoint
from tests import forks
from tests.checkpoint import kills

pytestmark = pytest.mark.slow

SHORT = [one for one in kills.CONFIG if not one.startswith("trainer.epochs")] + [
    "model=mlp_core",
    "trainer.epochs=10",
    "trainer.log_every_steps=1",
    "trainer.checkpoint.keep=99",
]
STEP = 100


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, kills.Ended]:
    folder = tmp_path_factory.mktemp("whole")
    return folder, kills.uninterrupted(folder, SHORT)[0]


def test_killed_twice_it_ends_the_same(tmp_path: Path, whole: tuple[Path, kills.Ended]) -> None:
    resumed, times = kills.killed(tmp_path, SHORT, [0.05, 0.1])
    assert times >= 1
    assert kills.differences(whole[1], resumed) == []


@pytest.mark.parametrize(
    "overrides",
    [["mesh=batch4_model2", "layout=megatron"], ["mesh=single", "engine=core_dtensor"], ["engine=jax"]],
    ids=["megatron", "core", "jax"],
)
def test_it_goes_on_elsewhere_with_the_same_losses(
    tmp_path: Path, whole: tuple[Path, kills.Ended], overrides: list[str]
) -> None:
    source = whole[1].checkpoint.folder.parent
    shutil.copytree(source, tmp_path / "copy")
    given = [f"resume={tmp_path / 'copy'}@{STEP}", "tracking=none", f"hydra.run.dir={tmp_path}/run", *overrides]
    forks.run([sys.executable, "-m", "runner", *given], check=True)
    last = storage.steps(tmp_path / "copy")[-1]
    there, here = (Checkpoint(storage.place(one, last)).history()["train"] for one in (tmp_path / "copy", source))
    assert there.shape == here.shape
    np.testing.assert_array_equal(there[:STEP], here[:STEP])
    np.testing.assert_allclose(there[STEP : STEP + 20, 1], here[STEP : STEP + 20, 1], rtol=1e-5)

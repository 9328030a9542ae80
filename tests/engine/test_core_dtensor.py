"""The Core engine equals one device on every kind of layout; the tutorial with its slips does not."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from tests import forks

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.slow


def verify(folder: Path, *arguments: str) -> tuple[int, dict[str, object]]:
    """Runs verify on digits; returns its exit code and report."""
    command = [sys.executable, "-m", "runner.verify", *arguments, "dataset.name=digits", "dataset.batch_size=64"]
    command += ["dataset.train=train", "dataset.test=test", "verify.steps=3", "tracking=none"]
    done = forks.run(
        [*command, f"hydra.run.dir={folder / 'run'}"],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        timeout=300,
    )
    assert done.returncode in (0, 1), done.stderr
    return done.returncode, json.loads((folder / "run" / "verify.json").read_text())


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("mesh", "layout"), [("batch8", "replicated"), ("batch4_model2", "fsdp_megatron"), ("model8", "megatron")]
)
def test_modules_on_a_mesh_compute_what_one_device_computes(tmp_path: Path, mesh: str, layout: str) -> None:
    small = ["model.hidden=[64,32]", "optimizer.learning_rate=0.001"]
    code, report = verify(
        tmp_path, "engine=core_dtensor", "model=mlp_core", f"mesh={mesh}", f"layout={layout}", *small
    )
    assert (code, report["verified"]) == (0, True)


@pytest.mark.nightly
def test_the_tutorials_slips_are_seen_and_the_corrected_preset_passes(tmp_path: Path) -> None:
    (tmp_path / "slips").mkdir()
    (tmp_path / "fixed").mkdir()
    code, report = verify(tmp_path / "slips", "experiment=core_tutorial")
    assert (code, report["verdict"]) == (1, "mismatch")
    assert {check["name"]: check["step"] for check in report["checks"] if not check["passed"]}["loss"] == 2
    assert verify(tmp_path / "fixed", "experiment=core_corrected")[0] == 0

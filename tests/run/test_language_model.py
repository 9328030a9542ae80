"""A run of a language model from its command line: metrics, samples at each evaluation, the same losses on a mesh."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests import forks

pytestmark = pytest.mark.campaign

ROOT = Path(__file__).parents[2]
TEXT = [
    "dataset=pydoc",
    "task=language_model",
    "model=gpt",
    "model.dim=16",
    "model.depth=1",
    "dataset.sequence_length=16",
    "dataset.batch_size=8",
    "dataset.eval_batch_size=32",
    "trainer.epochs=2",
    "trainer.steps_per_epoch=6",
    "trainer.limit_eval_batches=2",
    "task.sample.tokens=5",
    "task.sample.prompt=def",
    "tracking=none",
]
LIBRARIES = {"jax": "jax", "keras_dtensor": "tensorflow"}


def run(folder: Path, module: str, *overrides: str, engine: str) -> subprocess.CompletedProcess[str]:
    folder.mkdir(exist_ok=True)
    environment = os.environ | {"PYTHONPATH": str(ROOT), "XDG_CACHE_HOME": str(folder.parent)}
    command = [sys.executable, "-m", module, *overrides]
    done = forks.run(command, library=LIBRARIES[engine], cwd=folder, env=environment, timeout=900)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-3000:]
    return done


def trained(folder: Path, engine: str, *overrides: str) -> tuple[dict[str, Any], dict[str, str], str]:
    """Returns a run's summary, its samples by file, and what it printed."""
    where = folder / "run"
    done = run(folder, "runner", *TEXT, f"engine={engine}", f"hydra.run.dir={where}", *overrides, engine=engine)
    texts = {path.name: path.read_text() for path in sorted((where / "samples").iterdir())}
    return json.loads((where / "summary.json").read_text()), texts, done.stdout


@pytest.mark.parametrize("engine", list(LIBRARIES))
def test_a_mesh_has_the_losses_and_the_samples_of_one_device(tmp_path: Path, engine: str) -> None:
    one, texts, said = trained(tmp_path / "one", engine, "mesh=single")
    assert list(texts) == ["step_000000006.txt", "step_000000012.txt"]
    last = texts["step_000000012.txt"]
    assert last.startswith("step 12, seed 1337\n--- greedy\ndef")
    assert "\n--- temperature 0.8\ndef" in last
    assert "sample of samples/step_000000012.txt:" in said
    assert {"eval_perplexity", "eval_bits_per_byte", "eval_accuracy", "tokens_per_second"} <= set(one)
    mesh, others, _ = trained(tmp_path / "mesh", engine, "mesh=batch4_model2", "layout=megatron")
    for name in ("train_loss", "eval_loss", "eval_perplexity", "eval_bits_per_byte"):
        assert mesh[name] == pytest.approx(one[name], rel=1e-4), name  # twelve steps of Adam, of sums in another order
    assert others == texts
    done = run(tmp_path / "one", "runner.evaluate", "run=latest", "evaluate.prompt=class", engine=engine)
    assert "--- greedy\n  class" in done.stdout

"""Backbones of KerasHub are proven under rules of their own; a preset with adapters goes all the way."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import numpy as np
import pytest

from tests import forks
from tests.backbones_of_hub import tiny
from tests.backbones_of_hub.case import Planned, overrides
from tests.backbones_of_hub.proof import ROOT, plans

pytestmark = pytest.mark.campaign

NAMES = [
    "GPT2Backbone",
    "GemmaBackbone",
    "Gemma3Backbone",
    "Llama3Backbone",
    "Qwen3Backbone",
    "MistralBackbone",
    "MixtralBackbone",
    "BertBackbone",
    "ViTBackbone",
    "T5Backbone",
]
# KerasHub's layers by name: columns, then rows; heads stand first in Gemma's kernels.
HEADS_FIRST = ("GemmaBackbone", "Gemma3Backbone")
MEGATRON = [
    {"match": "token_embedding/embeddings", "spec": ["model", None], "optional": True},
    {"match": ".*(query|value)/kernel", "spec": [None, "model", None], "optional": True},
    {"match": ".*attention_output/kernel", "spec": ["model", None, None], "optional": True},
    {"match": ".*(feedforward_intermediate|feedforward_gate)_dense/kernel", "spec": [None, "model"], "optional": True},
    {"match": ".*feedforward_output_dense/kernel", "spec": ["model", None], "optional": True},
    {"match": ".*ffw_gating(_2)?/kernel", "spec": [None, "model"], "optional": True},
    {"match": ".*ffw_linear/kernel", "spec": ["model", None], "optional": True},
]
FIRST = [{"match": ".*(query|value)/kernel", "spec": ["model", None, None], "optional": True}, *MEGATRON]


def command(module: str, words: list[str], folder: Path, code: int = 0) -> str:
    """Runs a command to its end and returns what it printed."""
    environment = os.environ | {"PYTHONPATH": str(ROOT), "MLFLOW_TRACKING_URI": f"sqlite:///{folder / 'mlflow.db'}"}
    full = [sys.executable, "-m", module, *words]
    done = forks.run(full, library="jax", cwd=folder, env=environment, timeout=1200)
    assert done.returncode == code, done.stdout[-2000:] + done.stderr[-2000:]
    return done.stdout


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("hub")


@pytest.fixture(scope="module")
def found(folder: Path) -> dict[str, Planned]:
    return plans(NAMES, "batch4_model2", folder)


@pytest.mark.parametrize("mesh", ["batch8", "batch4_model2", "batch2_model4"])
@pytest.mark.parametrize("name", NAMES)
def test_the_mesh_equals_one_device(name: str, mesh: str, folder: Path, found: dict[str, Planned]) -> None:
    rules = FIRST if name in HEADS_FIRST else MEGATRON
    words = overrides(name, found[name].kind, mesh, folder)
    if mesh != "batch8":
        words.append("layout.rules=" + json.dumps(rules).replace('"', "'").replace(": ", ":"))
    out = command("runner.verify", [*words, "verify.steps=2", "tracking=none"], folder)
    assert "proven: 2 steps" in out


def test_a_preset_tuned_by_adapters_is_trained_resumed_evaluated_and_exported(
    folder: Path, found: dict[str, Planned]
) -> None:
    del found  # which wrote the arrays
    command("tests.backbones_of_hub.preset_worker", ["write", "GPT2Backbone", "preset"], folder)
    data = ["dataset=arrays", "dataset.path=GPT2Backbone.npz", "dataset.batch_size=16", "dataset.standardize=false"]
    task = ["task=language_model", f"task.vocabulary={tiny.VOCABULARY}", "engine=jax", "mesh=batch8", "layout=fsdp"]
    model = ["model=keras_hub", "model.preset=preset", "model.lora_rank=4", "optimizer.learning_rate=0.01"]
    ends = [f"hydra.run.dir={folder / 'tuned'}", f"trainer.checkpoint.folder={folder / 'checkpoints'}"]
    command("runner", [*data, *task, *model, *ends, "trainer.epochs=2"], folder)
    command("runner.evaluate", ["run=latest", ends[1]], folder)
    served = folder / "served"
    command(
        "runner.export",
        ["run=latest", f"export.folder={served}", f"trainer.checkpoint.folder={folder / 'checkpoints'}"],
        folder,
    )
    told = command("tests.backbones_of_hub.preset_worker", ["compare", "preset", str(served / "model.keras")], folder)
    moved = json.loads(told.splitlines()[-1])
    assert moved["changed"], "the adapters moved"
    assert all("query/kernel" in path or "value/kernel" in path for path in moved["changed"]), "and nothing else"
    assert np.isfinite(moved["largest"])

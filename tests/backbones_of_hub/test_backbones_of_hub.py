"""Backbones of KerasHub are verified, by our layouts and by rules on their paths; a tuned preset goes all the way."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests import forks

ROOT = forks.ROOT
WORKER = "tests.backbones_of_hub.worker"
pytestmark = pytest.mark.nightly

# Each of the families that people ask for, once under each kind of layout, over all meshes.
CELLS = [
    ("GPT2Backbone", "batch8", ["layout=fsdp"]),
    ("GPT2Backbone", "batch4_sequence2", ["layout=fsdp", "layout.sequence=sequence"]),
    ("GemmaBackbone", "batch4_model2", ["layout=megatron"]),
    ("Gemma3Backbone", "batch2_model4", ["layout=fsdp_megatron"]),
    ("Llama3Backbone", "batch2_model4", ["layout=megatron"]),  # whose 2 key/value heads model=4 does not divide
    ("Llama3Backbone", "batch2_sequence4", ["layout=sequence"]),
    ("Qwen3Backbone", "batch4_model2", ["layout=fsdp_megatron"]),
    ("MistralBackbone", "batch2_model4", ["layout=fsdp"]),
    ("MixtralBackbone", "batch2_experts4", ["layout=experts"]),
    ("BertBackbone", "batch2_model4", ["layout=auto"]),
    ("Gemma3Backbone", "batch4_model2", ["layout=auto"]),
    ("ViTBackbone", "batch4_model2", ["layout=fsdp_megatron"]),
    ("T5Backbone", "batch4_model2", ["layout=megatron"]),
]
# KerasHub's layers by name: columns, then rows; heads stand first in Gemma's kernels.
RULES = [
    "{match: token_embedding/embeddings, spec: [model, null]}",
    "{match: '.*(query|value)/kernel', spec: [model, null, null]}",
    "{match: '.*attention_output/kernel', spec: [model, null, null]}",
    "{match: '.*ffw_gating(_2)?/kernel', spec: [null, model]}",
    "{match: '.*ffw_linear/kernel', spec: [model, null]}",
]


def run(module: str, words: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PYTHONPATH": str(ROOT), "MLFLOW_TRACKING_URI": f"sqlite:///{folder / 'mlflow.db'}"}
    return forks.run([sys.executable, "-m", module, *words], library="jax", cwd=folder, env=environment, timeout=3600)


def asked(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return run("tests.backbones_of_hub.worker", list(words), folder)


def verify(folder: Path, overrides: list[str], words: list[str]) -> subprocess.CompletedProcess[str]:
    ends = ["verify.steps=2", "tracking=none", f"hydra.run.dir={folder / 'verify'}"]
    return run("runner.verify", [*words, *overrides, *ends], folder)


def command(module: str, words: list[str], folder: Path) -> str:
    done = run(module, words, folder)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return done.stdout


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("hub")


def verified(name: str, words: list[str], folder: Path) -> None:
    overrides = json.loads(command(WORKER, ["arrays", name, str(folder)], folder).splitlines()[-1])
    done = verify(folder, overrides, words)
    assert "verified: 2 steps" in done.stdout, done.stdout[-2000:] + done.stderr[-2000:]


@pytest.mark.parametrize(("name", "mesh", "layout"), CELLS, ids=[" ".join([n, m, *more]) for n, m, more in CELLS])
def test_the_mesh_equals_one_device(name: str, mesh: str, layout: list[str], folder: Path) -> None:
    verified(name, [f"mesh={mesh}", *layout], folder)


def test_rules_that_match_kerashub_s_own_paths_are_verified(folder: Path) -> None:
    rules = f"layout.rules=[{','.join(RULES)}]"
    verified("GemmaBackbone", ["mesh=batch4_model2", "layout=replicated", rules], folder)


def test_a_preset_tuned_by_adapters_is_trained_resumed_evaluated_and_exported(folder: Path) -> None:
    command(WORKER, ["arrays", "GPT2Backbone", str(folder)], folder)
    command(WORKER, ["write", "GPT2Backbone", "preset"], folder)
    data = ["dataset=arrays", "dataset.path=GPT2Backbone.npz", "dataset.batch_size=16", "dataset.standardize=false"]
    task = ["task=language_model", "task.vocabulary=64", "engine=jax", "mesh=batch8", "layout=fsdp"]
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
    told = command(WORKER, ["compare", "preset", str(served / "model.keras")], folder)
    moved = json.loads(told.splitlines()[-1])
    assert moved["changed"], "the adapters moved"
    assert all("query/kernel" in path or "value/kernel" in path for path in moved["changed"]), "and nothing else"
    assert np.isfinite(moved["largest"])

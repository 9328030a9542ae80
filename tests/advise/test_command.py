"""Advice of whole commands: its figures are those of `runner.plan`."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests import forks
from tests.plan.test_hardware import GPT

# GPT of `test_hardware` without what a candidate sets.
MODEL = tuple(word for word in GPT if not word.startswith("model.remat"))
BATCH = "dataset.batch_size=64"


def run(module: str, folder: Path, *words: str, code: int = 0) -> str:
    words = ("-m", module, *words, f"hydra.run.dir={folder}")
    # Wide enough for a table without line breaks.
    done = forks.python(*words, folder=folder.parent, code=code, library="jax", COLUMNS="200")
    return done.stdout + (done.stderr if code else "")


def overrides(candidate: dict[str, Any]) -> list[str]:
    axes = ",".join(f"{name}:{size}" for name, size in candidate["axes"])
    words = [f"mesh.axes={{{axes}}}", f"layout={candidate['layout']}", f"model.remat={candidate['remat']}"]
    if candidate["sequence"]:
        words.append("layout.sequence=sequence")
    return [*words, f"trainer.accumulate_steps={candidate['accumulate']}", f"engine.state={candidate['state']}"]


@pytest.mark.nightly
def test_a_candidates_figures_are_those_of_its_plan(tmp_path: Path) -> None:
    words = (*MODEL, BATCH, "hardware=h100", "plan.compiler=arithmetic")
    shown = run("runner.advise", tmp_path / "advice", "devices=16", *words)
    entries = json.loads((tmp_path / "advice" / "advise.json").read_text())
    sharded = []
    saving = []
    for entry in entries:
        candidate = entry["candidate"]
        if candidate["layout"] == "fsdp_megatron" and candidate["sequence"]:
            sharded.append(entry)
        if candidate["remat"] == "full" and candidate["accumulate"] > 1:
            saving.append(entry)
    for number, entry in enumerate((entries[0], sharded[0], saving[0])):
        folder = tmp_path / f"plan{number}"
        run("runner.plan", folder, *words, *overrides(entry["candidate"]))
        forecast = json.loads((folder / "plan.json").read_text())["forecast"]
        memory = dict(entry["memory"])
        for part in forecast["memory"]:
            assert memory[part["kind"]] == part["bytes"]
        assert entry["step_seconds"] == pytest.approx(forecast["step_seconds"])
        assert entry["bound"] == forecast["bound"]
    assert "the best: python -m runner " in shown


def test_devices_that_are_too_small_for_every_candidate_are_exit_code_1(tmp_path: Path) -> None:
    words = (*MODEL, BATCH, "hardware=h100", "hardware.memory_gib=0.001", "plan.compiler=arithmetic", "devices=2")
    words = (*words, "hardware.node_devices=1", "hardware.network_gb_s=null")
    shown = run("runner.advise", tmp_path / "advice", *words, code=1)
    assert "does not fit" in shown
    assert "the best: " not in shown
    assert not (tmp_path / "advice" / "conf").exists()
    assert "its weights and optimizer state alone need" in shown
    assert "warning: hardware.network_gb_s=null: 2 devices of hardware=h100 are 2 nodes of 1" in shown


@pytest.mark.nightly
def test_the_advised_command_lets_jax_reserve_what_it_needs(tmp_path: Path) -> None:
    words = (*MODEL, BATCH, "hardware=h100", "plan.compiler=arithmetic", "devices=1", "trainer.accumulate_steps=1")
    words = (*words, "model.remat=full", "engine.state=float32")
    run("runner.advise", tmp_path / "first", *words)
    (entry,) = json.loads((tmp_path / "first" / "advise.json").read_text())
    # A device of which the only candidate needs 85%.
    memory = f"hardware.memory_gib={entry['peak_bytes'] / 0.85 / (1 << 30):.4f}"
    shown = run("runner.advise", tmp_path / "advice", *words, memory)
    assert "the best: XLA_PYTHON_CLIENT_MEM_FRACTION=0.95 python -m runner " in shown

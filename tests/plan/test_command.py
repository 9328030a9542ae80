"""The real plan command, in processes of its own."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from runner.plan.table import WIDTH
from tests import forks

RULES = (
    "layout.rules=[{match: d1/kernel, spec: [null, model]}, {match: d1/bias, spec: [model]}, "
    "{match: d2/kernel, spec: [model, null]}]"
)


def run(folder: Path, *arguments: str, module: str = "runner.plan", code: int = 0) -> subprocess.CompletedProcess[str]:
    """Runs a command on digits to its end and checks its exit code."""
    return forks.python("-m", module, *arguments, "dataset=digits", folder=folder, code=code)


def planned(folder: Path) -> dict[str, Any]:
    return dict(json.loads((folder / "plan.json").read_text()))


@pytest.mark.slow
def test_a_plan_for_gpus_that_are_not_here_is_printed_and_written_as_json_markdown_and_a_picture(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(*forks.REAL)
    gpus = ("mesh=batch4_model2", "mesh.device=gpu", "plan.gflops=1000")
    done = run(tmp_path, *gpus, RULES, f"hydra.run.dir={tmp_path / 'run'}")
    plan = planned(tmp_path / "run")
    lines = done.stdout.splitlines()
    assert lines[0] == "mesh batch=4 model=2 on 8 GPUs, planned on virtual CPU devices, as no GPU is here"
    assert max(map(len, lines[1:-1])) <= WIDTH
    assert {"config.yaml", "plan.md", "plan.png"} <= {path.name for path in (tmp_path / "run").iterdir()}
    kernel = plan["variables"][0]
    assert kernel["path"] == "d1/kernel"
    assert kernel["shape"] == [64, 128]
    assert kernel["dtype"] == "float32"
    assert kernel["spec"] == [None, "model"]
    assert kernel["bytes"] == 64 * 128 * 4 == 2 * kernel["bytes_per_device"]
    assert kernel["moved_bytes"] == kernel["bytes_per_device"]
    assert kernel["rule"]
    assert plan["axes"] == {"batch": 4, "model": 2}
    traffic = {(each["phase"], each["axis"]): each for each in plan["traffic"]}
    assert traffic["forward", "model"]["bytes"] == 64 // 4 * 10 * 4
    assert plan["totals"]["slots"]["bytes_per_device"] == 2 * plan["totals"]["parameters"]["bytes_per_device"]
    assert plan["compute_seconds"] == pytest.approx(plan["flops_per_device"] / 1e12)
    rates = plan["rates"]
    assert (rates["device"], rates["gflops"], rates["bandwidth_gb_s"]) == ("gpu", 1000.0, 300.0)
    note = "plan.gflops; else an A100's data sheet; planned on virtual CPU devices, as no GPU is here"
    assert rates["note"] == note


@pytest.mark.nightly
def test_parts_of_a_batch_and_averages_of_weights_are_counted(tmp_path: Path) -> None:
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    run(tmp_path, "mesh=batch2", "engine=jax", f"hydra.run.dir={whole}")
    more = ["trainer.accumulate_steps=4", "optimizer.ema.decay=0.9"]
    run(tmp_path, "mesh=batch2", "engine=jax", *more, f"hydra.run.dir={parts}")
    one, four = planned(whole), planned(parts)
    weights = one["totals"]["parameters"]["bytes_per_device"]
    assert four["totals"]["parameters"] == one["totals"]["parameters"]
    held = {kind: [plan["totals"][kind]["bytes_per_device"] for plan in (one, four)] for kind in one["totals"]}
    assert held["slots"] == [2 * weights, 3 * weights]
    assert held["gradients"] == [weights, 2 * weights]
    assert held["activations"][0] == 4 * held["activations"][1]
    assert one["flops_per_device"] == four["flops_per_device"]
    (before,), (after,) = one["traffic"], four["traffic"]
    assert after["count"] == 4 * before["count"]
    # DTensor fills a merged all-reduce up, one vector of all gradients it does not.
    assert 4 * before["bytes"] <= after["bytes"] < 4 * before["bytes"] * 1.1


@pytest.mark.nightly
def test_processes_of_a_cluster_that_nobody_rented_are_planned_and_none_is_started(tmp_path: Path) -> None:
    for name in ("local", "explicit"):
        folder = tmp_path / name
        cluster = [f"cluster={name}", "cluster.processes=4"]
        done = run(
            tmp_path, "mesh=batch4_model2", "layout=megatron", "engine=jax", *cluster, f"hydra.run.dir={folder}"
        )
        plan = planned(folder)
        assert (plan["processes"], plan["crossing"]) == (4, ["batch"])
        assert {each["axis"]: each["crosses"] for each in plan["traffic"]} == {"model": False, "batch": True}
        assert "4 processes of 2 devices: batch crosses them; model is inside one" in done.stdout
        assert not (folder / "processes").exists()


@pytest.mark.nightly
def test_a_multirun_compares_its_plans(tmp_path: Path) -> None:
    kernels = 'layout.rules=[],[{match: "d./kernel", spec: [batch, null]}]'
    done = run(tmp_path, "-m", "mesh=batch8", kernels, f"hydra.sweep.dir={tmp_path / 'sweep'}")
    first, second = planned(tmp_path / "sweep" / "0"), planned(tmp_path / "sweep" / "1")
    assert first["totals"]["parameters"]["bytes_per_device"] > second["totals"]["parameters"]["bytes_per_device"]
    assert "2 jobs: 2 passed" in done.stdout


@pytest.mark.nightly
def test_every_training_run_keeps_its_plan_and_records_it(tmp_path: Path) -> None:
    from mlflow import MlflowClient

    store = f"sqlite:///{tmp_path / 'mlflow.db'}"
    overrides = ["mesh=batch2", "trainer.epochs=1", "trainer.log_model=false", f"tracking.uri={store}"]
    run(tmp_path, *overrides, f"hydra.run.dir={tmp_path / 'run'}", module="runner")
    plan = planned(tmp_path / "run")
    # Of each gradient by itself, though DTensor merges them.
    assert sum(each["count"] for each in plan["traffic"]) == 4
    client = MlflowClient(store)
    experiment = client.get_experiment_by_name("runner")
    assert experiment is not None
    (only,) = client.search_runs([experiment.experiment_id])
    assert {"plan.json", "plan.md", "plan.png"} <= {item.path for item in client.list_artifacts(only.info.run_id)}

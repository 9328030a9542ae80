"""Benchmarks leave nothing behind, and compare what they measured with plans."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import gpu, optimizers, plan_errors, plan_rows, plans, plans_here, published
from runner.plan import known_errors

ROOT = Path(__file__).parents[1]


def test_a_child_that_its_parent_kills_writes_below_the_parent_s_folder(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    folders: list[Path] = []
    monkeypatch.setattr(optimizers, "train_ours", lambda *arguments: folders.append(arguments[-1]))
    examples = tmp_path / "examples.npz"
    monkeypatch.setattr(sys, "argv", ["optimizers", "--child", "ours", "--only", "Lion", "--examples", str(examples)])
    optimizers.main()
    (folder,) = folders
    assert folder.parent == tmp_path


def test_the_errors_of_a_plan_are_relative_to_the_measured_figures() -> None:
    run = {
        "code": 0,
        "summary": {"step_ms": 200.0, "tokens_per_second": 81920.0, "model_flop_utilization": 0.5},
        "memory": {"peak_bytes": 20 << 30},
        "program": {"peak_bytes": 19 << 30},
    }
    parts = [{"bytes": 12 << 30}, {"bytes": 13 << 30}]
    cells = gpu.row("1b,none", run, {"step_seconds": [0.2, 0.3], "memory": parts})
    assert dict(zip(gpu.HEADER, cells, strict=True)) == {
        "model, remat": "1b,none",
        "tokens/s": "81,920",
        "step": "200 ms",
        "planned step": "200 to 300 ms",
        "error of the step": "+25%",
        "MFU": "50.0%",
        "peak memory": "20.0 GiB",
        "by XLA": "19.0 GiB",
        "planned memory": "25.0 GiB",
        "error of the memory": "+25%",
    }


def test_a_run_that_failed_has_its_reason_in_the_table() -> None:
    failed = gpu.row("1b,none", {"code": 1, "output": ["error: out of memory", "device memory: {}"]}, {})
    assert failed[:2] == ("1b,none", "failed: out of memory")
    assert len(failed) == len(gpu.HEADER)
    assert gpu.row("1b,none", {"code": -11, "output": []}, {})[1] == "failed: signal 11"


def test_a_record_of_plans_errors_keeps_those_that_a_call_has_not_measured(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "errors.json"
    before = {"memory, target": {"runs": 3, "median": 0.1, "p90": 0.2, "of": "published runs"}}
    file.write_text(json.dumps(before))
    measured = {"memory here": plan_errors.Errors(4, 0.05, 0.08, 0.09)}
    monkeypatch.setattr(plans_here, "run", lambda: ([["config"], ["gpt"]], measured))
    monkeypatch.setattr(sys, "argv", ["plans", "--here", "--record", str(file)])
    plans.main()
    here = {"memory here": {"runs": 4, "median": 0.05, "p90": 0.08, "of": "runs"}}
    assert json.loads(file.read_text()) == before | here
    assert "| memory, target | median 10%, p90 20% over 3 published runs |" in capsys.readouterr().out


@pytest.mark.parametrize(("is_scanned", "spec"), [(True, "[null, batch, sequence]"), (False, "[batch, sequence]")])
def test_rules_of_published_runs_have_the_dims_of_their_kernels(*, is_scanned: bool, spec: str) -> None:
    overrides = published._mesh({"fsdp": 2, "tp": 1, "cp": 4}, is_scanned=is_scanned)
    assert overrides[:2] == ["mesh.axes={batch:2,sequence:4}", "layout=sequence"]
    assert f"{{match: '.*feedforward/(gate|up|down)/kernel', spec: {spec}, optional: true}}" in overrides[2]


def test_the_error_of_step_times_says_whose_efficiency_it_has() -> None:
    row = plan_rows.Result(0, "source", "model", predicted_seconds=1.1, published_seconds=1.0)
    content = plan_errors.recorded([row], {})["step time"]
    assert content["median"] == pytest.approx(0.1)
    shipped = json.loads(known_errors.FILE.read_text())["step time"]
    assert content["of"] == shipped["of"] == "published runs, with an efficiency fitted on other sources"


@pytest.mark.campaign
def test_a_config_that_runs_here_has_the_memory_of_its_compiled_plan() -> None:
    script = (
        "import json, sys; from benchmarks import plans_here; "
        "name = sys.argv[1]; print(json.dumps(plans_here.measured(name) | {'compiled': plans_here.compiled(name)}))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, "vit"], cwd=ROOT, capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    run = json.loads(done.stdout.splitlines()[-1])
    assert run["compiled"] == pytest.approx(run["xla"], rel=0.1)
    assert run["seconds"] > 0
    assert run["planned_seconds"] > 0

"""Benchmarks leave nothing behind, and compare what they measured with plans."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from benchmarks import gpu, object_stores, optimizers, plan_errors, plan_rows, plans, plans_here, published, turns
from benchmarks.contenders import ContenderError
from runner.plan import known_errors
from tests import object_server

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


def test_a_block_of_a_training_that_takes_turns_leaves_out_the_time_in_which_it_was_stopped(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    stopped: list[int] = []

    def stop(pid: int, _signal: int) -> None:
        stopped.append(pid)
        time.sleep(0.2)

    monkeypatch.setattr(os, "kill", stop)
    file = tmp_path / "blocks"
    in_turns = turns._Turns(block=10, first=5, file=file)
    # Device calls of four steps: a block ends with the call that reaches its end.
    for step in range(4, 29, 4):
        in_turns.after_call(step, lambda: None)
    blocks = [turns.Block(**json.loads(line)) for line in file.read_text().splitlines()]
    assert stopped == [os.getpid()] * 3
    assert [block.steps for block in blocks] == [8, 12]
    assert all(0.0 < block.wall < 0.2 for block in blocks)
    assert (blocks[0] + blocks[1]).steps == 20


def test_a_training_that_ends_before_its_turn_shows_why() -> None:
    with pytest.raises(ContenderError, match=r"exit code 2\n(.*\n)*.*model=nothing"):
        turns.Trainee(["model=nothing"], os.environ, block=10, first=10)


def test_ratios_of_rounds_have_an_interval_that_ignores_what_both_trainings_met() -> None:
    load = np.random.default_rng(1).uniform(1.0, 2.0, 40)
    noise = np.random.default_rng(2).uniform(0.99, 1.01, 40)
    for statistic in (object_stores.median_ratio, object_stores.total_ratio):
        low, high = object_stores.interval(statistic, 1.02 * load * noise, load)
        assert 1.015 < low < statistic(1.02 * load * noise, load) < high < 1.025


def test_quiet_rounds_are_those_in_which_the_trainings_had_their_processors() -> None:
    # Wall seconds; each block has 1 CPU second. Both trainings of a round count alike.
    local = [1.01, 1.9, 1.0, 1.02]
    store = [1.03, 1.0, 1.8, 1.01]
    measured: dict[str, object_stores.Measured] = {}
    for name, walls in (("local", local), ("store", store)):
        blocks = [turns.Block(steps=100, wall=wall, cpu=1.0, saving=0.0) for wall in walls]
        measured[name] = object_stores.Measured(blocks, server=[0.1] * len(blocks))
    assert object_stores.quiet_rounds(measured) == [0, 3]
    assert [block.wall for block in measured["store"].of([0, 3]).blocks] == [1.03, 1.01]


@pytest.mark.slow
@pytest.mark.nightly
@pytest.mark.skipif(object_server.interpreter() is None, reason="needs moto: see tests/object_server.py")
def test_trainings_with_local_checkpoints_and_in_a_store_take_turns(tmp_path: Path) -> None:
    out = tmp_path / "rounds.json"
    options = ["--minutes", "0.01", "--every", "100", "--out", str(out), "dataset=digits", "model.hidden=[16]"]
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.object_stores", *options],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "store, CPU" in done.stdout
    rounds = json.loads(out.read_text())
    assert len(rounds["local"]) == len(rounds["store"]) >= 1
    for block in (*rounds["local"], *rounds["store"]):
        assert block["steps"] == pytest.approx(100, abs=10)
        assert 0.0 < block["saving"] < block["wall"]
        # This process saves in the store during the turns of the training that does not.
        assert block["server"] > 0.0


@pytest.mark.nightly
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

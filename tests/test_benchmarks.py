"""Benchmarks leave nothing behind, and compare what they measured with plans."""

import ast
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from benchmarks import gpu, optimizers, published, turns
from tests import imports

ROOT = Path(__file__).parents[1]


def defined(module: ast.Module) -> set[str]:
    names = set()
    for node in ast.walk(module):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        elif isinstance(node, ast.alias):
            names.add(node.asname or node.name)
    return names


def test_benchmarks_import_what_the_package_has() -> None:
    package = imports.modules("runner")
    missing = []
    for path in imports.modules("benchmarks").values():
        for node in ast.walk(imports.tree(path)):
            if isinstance(node, ast.ImportFrom) and node.module in package:
                names = {alias.name for alias in node.names if f"{node.module}.{alias.name}" not in package}
                missing += [f"{path.name}: {name}" for name in names - defined(imports.tree(package[node.module]))]
    assert not missing


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


@pytest.mark.parametrize(("is_scanned", "spec"), [(True, "[null, batch, sequence]"), (False, "[batch, sequence]")])
def test_rules_of_published_runs_have_the_dims_of_their_kernels(*, is_scanned: bool, spec: str) -> None:
    overrides = published._mesh({"fsdp": 2, "tp": 1, "cp": 4}, is_scanned=is_scanned)
    assert overrides[:2] == ["mesh.axes={batch:2,sequence:4}", "layout=sequence"]
    assert f"{{match: '.*feedforward/(gate|up|down)/kernel', spec: {spec}, optional: true}}" in overrides[2]


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

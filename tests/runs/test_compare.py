"""The comparison: what is a column, which run is first, what passes a filter, and what is printed and written."""

import json
import math
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from runner import figures
from runner.cli.commands import run
from runner.cli.runs import act
from runner.cli.runs.act import best_first, table_of, varying
from runner.cli.runs.records import (
    RunRecord,
    directions,
    higher_is_better,
    judged_by,
    result_columns,
    results_of,
    verdict_of,
)
from runner.cli.sweep import run as sweep_run
from runner.cluster.jobs import Job, Outcome
from runner.cluster.membership import varied_name, varied_tags
from runner.tracking import start
from runner.tracking.base import RunSpec
from runner.tracking.store import KIND_TAG, open_store
from runner.train.record import listed_params

SIZE = "dataset.batch_size"


def record(name: str, *, accuracy: float = 0.9, tags: dict[str, str] | None = None, **params: object) -> RunRecord:
    texts = {key.replace("__", "."): str(value) for key, value in params.items()}
    return RunRecord(name, name, "FINISHED", texts, {"eval/accuracy": accuracy}, tags or {})


def test_what_runs_differ_in_is_a_column_and_what_is_the_same_is_not() -> None:
    runs = [
        record("a", dataset__batch_size=64, trainer__epochs=3),
        record("b", dataset__batch_size=128, trainer__epochs=3),
    ]
    assert varying(runs) == [SIZE]


def test_an_option_of_a_group_stands_for_the_keys_that_go_with_it() -> None:
    runs = [
        record(f"{optimizer}{size}", optimizer=optimizer, optimizer__learning_rate=rate, dataset__batch_size=size)
        for optimizer, rate in (("adam", 0.001), ("sgd", 0.01))
        for size in (32, 64)
    ]
    assert varying(runs) == ["optimizer", SIZE]


@pytest.mark.parametrize("differs", [{"optimizer": "adamw"}, {"task": "binary"}, {"mesh": "batch=4"}])
def test_other_options_or_axes_are_a_column(differs: dict[str, str]) -> None:
    options = {"optimizer": "adam", "task": "classification", "mesh": "data"}
    runs = []
    for name, others in (("a", {}), ("b", differs)):
        axes = dict([others.get("mesh", "batch=8").split("=")])
        listed = listed_params({"mesh": {"axes": axes}}, options | others, [])
        runs.append(RunRecord(name, name, "FINISHED", {key: str(value) for key, value in listed.items()}, {}))
    assert varying(runs) == list(differs)


def test_where_records_are_kept_and_what_is_printed_are_no_differences() -> None:
    assert varying([record(name, trainer__progress=name, tracking__uri=name) for name in "ab"]) == []


def test_a_run_is_a_row_with_its_seed_and_the_best_is_first() -> None:
    told = {"mlflow.runner.metrics": json.dumps({"accuracy": "maximize"})}
    runs = [
        record(f"{size}-{seed}", accuracy=accuracy, tags=told, dataset__batch_size=size, trainer__seed=seed)
        for size, seed, accuracy in ((64, 1, math.nan), (64, 2, 0.94), (128, 1, 0.80), (128, 2, math.inf))
    ]
    ranked = best_first(runs, "eval/accuracy")
    assert table_of(ranked, varying(runs), "eval/accuracy") == {
        "run": ["128-2", "64-2", "128-1", "64-1"],
        "batch_size": ["128", "64", "128", "64"],
        "seed": ["2", "2", "1", "1"],
        "status": ["FINISHED"] * 4,
        "test accuracy": ["inf", "0.9400", "0.8000", "NaN"],
    }


def of_task(*names: str, told: dict[str, str] | None = None) -> RunRecord:
    tags = {"mlflow.runner.metrics": json.dumps(told)} if told else {}
    return RunRecord("r", "r", "FINISHED", {}, dict.fromkeys(names, 0.5), tags)


def test_runs_are_judged_by_what_their_task_says() -> None:
    told = {"loss": "minimize", "mae": "minimize", "r2": "maximize"}
    prices = of_task("eval/loss", "eval/mae", "eval/r2", "train/loss", told=told)
    assert directions([prices]) == {f"eval/{name}": better for name, better in told.items()}
    assert judged_by([prices]) == "eval/loss", "no first choice of which more is better"
    assert list(result_columns([prices], "eval/loss", [])) == ["test loss", "test mae", "test r2", "train/loss"]
    assert higher_is_better("test/r2", [prices])
    assert not higher_is_better("eval/mae", [prices])
    labels = of_task("eval/loss", "eval/f1_micro", told={"loss": "minimize", "f1_micro": "maximize"})
    assert judged_by([labels]) == "eval/f1_micro"


@pytest.mark.parametrize(
    ("evaluated", "flops", "keys", "shown"),
    [
        ({}, [1.0, 2.0], ["mesh"], ["bytes per device", "flops per device"]),
        ({}, [1.0, 1.0], [], ["bytes per device", "flops per device"]),
        ({}, [1.0], [], ["bytes per device", "flops per device"]),
        ({"eval/loss": 0.5}, [1.0, 2.0], ["mesh.axes.batch"], ["test loss", "flops per device"]),
        ({"eval/loss": 0.5}, [1.0, 2.0], ["layout"], ["test loss", "flops per device"]),
        ({"eval/loss": 0.5}, [1.0, 2.0], [SIZE], ["test loss"]),
    ],
)
def test_figures_of_plans_are_all_shown_or_beside_evaluations_where_shards_differ(
    evaluated: dict[str, float], flops: list[float], keys: list[str], shown: list[str]
) -> None:
    figures = {**evaluated, "plan/bytes_per_device": 8e9}
    runs = [RunRecord("r", "r", "FINISHED", {}, {**figures, "plan/flops_per_device": value}) for value in flops]
    columns = result_columns(runs, "eval/loss", keys)
    assert list(columns) == shown
    assert columns.get("bytes per device", ["7.45 GiB"])[0] == "7.45 GiB"


def test_a_verdict_is_a_column_of_its_own(tmp_path: Path) -> None:
    runs = [RunRecord("a", "a", "FAILED", {}, {}, {"runner.verdict": "mismatch"}), RunRecord("b", "b", "", {}, {})]
    assert result_columns(runs, "eval/loss", []) == {"verdict": ["mismatch", ""]}
    assert verdict_of(tmp_path) == ""
    (tmp_path / "verify.json").write_text('{"verdict": "inconclusive"}')
    sweep: Any = SimpleNamespace(
        parent=None, jobs=[Job(0, (), tmp_path)], outcomes={0: Outcome("failed")}, finished_runs={}
    )
    (entry,) = sweep_run._entries(sweep)
    assert sweep_run.table_of([entry], "eval/loss")["verdict"] == ["inconclusive"]


def test_a_folder_tells_of_any_tasks_metrics(tmp_path: Path) -> None:
    assert results_of(tmp_path) == {}
    summary = {
        "eval_r2": 0.5,
        "eval_examples": 360,
        "train_loss": 0.25,
        "step_ms": 2.0,
        "ended": "in time",
        "steps": 6,
        "plan_flops_per_device": 8.0,
    }
    (tmp_path / "summary.json").write_text(json.dumps(summary))
    expected = {"eval/r2": 0.5, "train/loss": 0.25, "throughput/step_ms": 2.0, "plan/flops_per_device": 8.0}
    assert results_of(tmp_path) == expected


POINTS = {"a": [(10, 0.5), (20, 0.25)], "b": [(5, 0.6), (10, 0.3)], "c": [(7, 0.1)]}


@pytest.mark.parametrize(
    ("sizes", "label", "steps"),
    [
        ({"a": "32", "b": "64", "c": "64"}, "training examples", [[320, 640], [320, 640]]),
        ({"a": "32", "b": ""}, "training steps", [[10, 20], [5, 10]]),
        ({"c": "64"}, "", []),  # one point is no curve
    ],
)
def test_curves_are_by_examples_where_batch_sizes_differ(
    sizes: dict[str, str], label: str, steps: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: list[Any] = []
    monkeypatch.setattr(figures, "save", lambda figure, _: drawn.append(figure.axes[0]))
    monkeypatch.setattr(act, "history", lambda _, run_id, __: POINTS[run_id])
    runs = [RunRecord(name, name, "FINISHED", {SIZE: size}, {}) for name, size in sizes.items()]
    store: Any = None
    assert act.draw_curves(Path("x.png"), store, runs, ["eval/loss"]) == bool(steps)
    assert [axes.get_xlabel() for axes in drawn] == [label] * bool(steps)
    assert [list(line.get_xdata()) for axes in drawn for line in axes.lines] == steps


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A store with a sweep of two sizes and two seeds, and a run of another experiment that failed."""
    folder = tmp_path_factory.mktemp("store")
    uri = f"sqlite:///{folder / 'mlflow.db'}"
    opened = open_store(uri, "ours")
    client = opened.client
    parent = start.create(opened, RunSpec("our sweep", tags={KIND_TAG: "sweep"}), folder)
    client.set_terminated(parent, "FINISHED")
    for size in (64, 128):
        for seed in (1, 2):
            varied = {SIZE: str(size), "trainer.seed": str(seed)}
            content = {"dataset": {"batch_size": size}, "trainer": {"seed": seed, "epochs": 3}}
            params = listed_params(content, {"optimizer": "adam"}, list(varied))
            run = start.create(opened, RunSpec(varied_name(varied), params, varied_tags(varied), parent), folder)
            for step in (10, 20, 30):
                client.log_metric(run, "train/loss", size / step, step=step)
                client.log_metric(run, "eval/accuracy", 1 - size / 1000 - seed / 100 - 1 / step, step=step)
            client.set_terminated(run, "FINISHED")
    other = open_store(uri, "other")
    client.set_terminated(client.create_run(other.experiment_id, run_name="lost").info.run_id, "FAILED")
    return uri


def compare(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> str:
    assert run("runner.cli.runs", ["compare", *arguments]) == code
    said = capsys.readouterr()
    return said.err if code else said.out


def test_a_sweep_is_a_table_best_first_with_files_and_plots(
    store: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    out = compare(capsys, f"uri={store}", "sweep=latest", f"out={tmp_path}")
    assert "epochs" not in out, "what is the same is left out"
    assert re.search(r"4 runs\n(.*\n){2}\w{8} +64 +1 +FINISHED +0\.8927 +2\.1333 *\n\w{8} +64 +2 ", out)
    assert {path.name for path in tmp_path.glob("[!.]*")} == {"curves.png", "table.csv"}
    assert "4 runs\n" in compare(capsys, f"uri={store}", "sweep=our sweep"), "by its name"


@pytest.mark.parametrize(
    ("arguments", "count"),
    [
        ([], 5),
        (["last=2"], 2),
        (["run=batch_size=64,seed=1", "run=batch_size=128,seed=1"], 2),
        (["status=failed"], 1),
        (["status=failed, killed"], 1),
    ],
)
def test_filters(store: str, capsys: pytest.CaptureFixture[str], arguments: list[str], count: int) -> None:
    assert f"{count} runs" in compare(capsys, f"uri={store}", *arguments)


@pytest.mark.parametrize(
    ("arguments", "said"), [(["sweep=none such"], "sweep none such:"), (["run=none"], "run=none:")]
)
def test_what_is_not_there_is_refused_in_one_line(
    store: str, capsys: pytest.CaptureFixture[str], arguments: list[str], said: str
) -> None:
    err = compare(capsys, f"uri={store}", *arguments, code=2)
    assert said in err
    assert len(err.splitlines()) == 1

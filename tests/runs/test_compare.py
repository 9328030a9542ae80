"""The comparison: what is a column, what is folded, what passes a filter, and what the command prints and writes."""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace
from pathlib import Path

import pytest

from runner.cli.runs.command import main
from runner.cli.runs.records import (
    RunRecord,
    directions,
    from_folder,
    higher_is_better,
    judged_by,
)
from runner.cli.runs.sheet import (
    Sheet,
    Stat,
    columns,
    make_lines,
    sheet_of,
    sort_lines,
    to_csv,
    to_markdown,
    varying,
)
from runner.tracking.store import open_store

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
        record(f"{mesh}{rate}", tags={"runner.mesh": mesh}, mesh__axes__batch=axes, optimizer__learning_rate=rate)
        for mesh, axes in (("single", 1), ("batch8", 8))
        for rate in (0.1, 0.2)
    ]
    assert varying(runs) == ["mesh", "optimizer.learning_rate"]


def test_where_records_are_kept_and_what_was_typed_are_no_differences() -> None:
    runs = [record("a", run__command="x", tracking__uri="s"), record("b", run__command="y", tracking__uri="t")]
    assert varying(runs) == []


def test_seeds_of_one_config_are_one_line_with_mean_and_deviation() -> None:
    runs = [
        record(f"{size}-{seed}", accuracy=accuracy, dataset__batch_size=size, trainer__seed=seed)
        for size, seed, accuracy in ((64, 1, 0.90), (64, 2, 0.94), (128, 1, 0.80), (128, 2, math.nan))
    ]
    small, large = make_lines(runs)
    assert small.values == {SIZE: "64"}
    assert small.metrics["eval/accuracy"] == Stat(pytest.approx(0.92), pytest.approx(0.0282843, abs=1e-6), 2)
    assert math.isnan(large.metrics["eval/accuracy"].mean)
    found = [line.values[SIZE] for line in sort_lines([large, small], "eval/accuracy", descending=True)]
    assert found == ["64", "128"], "NaN is last"


def of_task(*names: str, told: dict[str, str] | None = None) -> RunRecord:
    tags = {"runner.metrics": json.dumps(told)} if told else {}
    return RunRecord("r", "r", "FINISHED", {}, dict.fromkeys(names, 0.5), tags)


def test_runs_are_judged_by_what_their_task_says() -> None:
    told = {"loss": "minimize", "mae": "minimize", "r2": "maximize"}
    prices = of_task("eval/loss", "eval/mae", "eval/r2", "train/loss", told=told)
    assert directions([prices]) == {f"eval/{name}": better for name, better in told.items()}
    assert judged_by([prices]) == "eval/loss", "no first choice of which more is better"
    assert columns([prices], "eval/loss")[:3] == ["eval/loss", "eval/mae", "eval/r2"]
    assert higher_is_better("test/r2", [prices])
    assert not higher_is_better("eval/mae", [prices])
    labels = of_task("eval/loss", "eval/f1_micro", told={"loss": "minimize", "f1_micro": "maximize"})
    assert judged_by([labels]) == "eval/f1_micro"


def test_columns_say_which_split_a_metric_is_of() -> None:
    values = {"eval/loss": 0.2, "test/loss": 0.3}
    (line,) = make_lines([RunRecord("r", "r", "FINISHED", {}, values)])
    assert sheet_of([line], ["eval/loss", "test/loss"]).titles == ("validation loss", "test loss")
    assert sheet_of([line], ["eval/loss"]).titles == ("test loss",)


def test_what_diverged_is_told_and_sorts_last() -> None:
    records = [record(f"r{seed}", **{"trainer.seed": seed}) for seed in (1, 2)]
    records = [replace(one, metrics={"eval/loss": value}) for one, value in zip(records, (math.inf, 1.0), strict=True)]
    (line,) = make_lines(records)
    assert (line.metrics["eval/loss"].mean, line.metrics["eval/loss"].count) == (math.inf, 2)
    assert sheet_of([line], ["eval/loss"]).rows[0][-1] == "inf ± NaN"
    lines = [*make_lines(records[:1]), *make_lines(records[1:])]
    assert [one.records[0].name for one in sort_lines(lines, "eval/loss", descending=False)] == ["r2", "r1"]
    assert [sheet_of([one], ["eval/loss"]).rows[0][-1] for one in lines] == ["inf", "1.0000"]


def test_a_folder_tells_of_any_tasks_metrics(tmp_path: Path) -> None:
    assert from_folder(tmp_path, "job", "FAILED") is None
    (tmp_path / "config.yaml").write_text("trainer: {seed: 1}\n")
    summary = {
        "eval_r2": 0.5,
        "eval_examples": 360,
        "train_loss": 0.25,
        "step_ms": 2.0,
        "ended": "in time",
        "steps": 6,
    }
    (tmp_path / "summary.json").write_text(json.dumps(summary))
    found = from_folder(tmp_path, "job", "FINISHED")
    assert found is not None
    assert found.metrics == {"eval/r2": 0.5, "train/loss": 0.25, "throughput/step_ms": 2.0}


def test_a_table_is_the_same_as_csv_and_markdown() -> None:
    lines = make_lines([record("a", dataset__batch_size=64), record("b", dataset__batch_size=128, accuracy=0.95)])
    sheet = sheet_of(lines, ["eval/accuracy", "eval/loss"])
    assert to_csv(sheet) == "batch_size,test accuracy\n64,0.9000\n128,0.9500\n"
    marked = Sheet(sheet.titles, (("a|b", "1"),), frozenset({1}), best=0)
    assert to_markdown(marked) == "| batch_size | test accuracy |\n| --- | ---: |\n| **a\\|b** | **1** |\n"


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A store with a sweep of two sizes and two seeds, and a run of another experiment that failed."""
    folder = tmp_path_factory.mktemp("store")
    uri = f"sqlite:///{folder / 'mlflow.db'}"
    opened = open_store(uri, "ours")
    client = opened.client
    parent = client.create_run(opened.experiment_id, tags={"runner.kind": "sweep"}, run_name="our sweep").info.run_id
    client.set_terminated(parent, "FINISHED")
    for size in (64, 128):
        for seed in (1, 2):
            tags = {"mlflow.parentRunId": parent, "runner.mesh": "single", "varied." + SIZE: str(size)}
            run = client.create_run(opened.experiment_id, tags=tags, run_name=f"batch_size={size},seed={seed}")
            for key, value in ((SIZE, size), ("trainer.seed", seed), ("trainer.epochs", 3), ("dataset.test", "test")):
                client.log_param(run.info.run_id, key, value)
            for step in (10, 20, 30):
                client.log_metric(run.info.run_id, "train/loss", size / step, step=step)
                client.log_metric(run.info.run_id, "eval/accuracy", 1 - size / 1000 - seed / 100 - 1 / step, step=step)
            client.set_terminated(run.info.run_id, "FINISHED")
    other = open_store(uri, "other")
    client.set_terminated(client.create_run(other.experiment_id, run_name="lost").info.run_id, "FAILED")
    return uri


def compare(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> str:
    assert main(["compare", *arguments]) == code
    said = capsys.readouterr()
    return said.err if code else said.out


def test_a_sweep_is_a_table_best_first_with_files_and_plots(
    store: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    out = compare(capsys, "--uri", store, "--sweep", "latest", "--out", str(tmp_path))
    assert "4 runs, 2 lines" in out
    assert "epochs" not in out, "what is the same is left out"
    text = (tmp_path / "table.csv").read_text().splitlines()
    assert text[0] == "run,batch_size,runs,test accuracy,train/loss"
    assert re.match(r"\w{8},64,2,0\.8877 ± 0\.0071,2\.1333 ± 0$", text[1])
    assert text[2].split(",")[1] == "128"
    names = {path.name for path in tmp_path.glob("*.png")}
    assert names == {"curves.png"}
    assert "4 runs, 2 lines" in compare(capsys, "--uri", store, "sweep=our sweep"), "by its name"


@pytest.mark.parametrize(
    ("arguments", "count"),
    [
        ([], 5),
        (["last=2"], 2),
        (["run=batch_size=64,seed=1", "run=batch_size=128,seed=1"], 2),
        (["status=failed"], 1),
    ],
)
def test_filters(store: str, capsys: pytest.CaptureFixture[str], arguments: list[str], count: int) -> None:
    assert f"{count} runs, " in compare(capsys, "--uri", store, *arguments)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--sweep", "none such"], "sweep none such:"),
        (["--run", "none"], "run=none:"),
    ],
)
def test_what_is_not_there_is_refused_in_one_line(
    store: str, capsys: pytest.CaptureFixture[str], arguments: list[str], said: str
) -> None:
    err = compare(capsys, "--uri", store, *arguments, code=2)
    assert said in err
    assert len(err.splitlines()) == 1

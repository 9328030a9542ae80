"""What the list costs: a run's config is read only where a row that is shown depends on it."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import yaml
from mlflow import MlflowClient

from runner.compare.records import load
from runner.host import folders
from runner.runs.command import main
from tests.runs.test_clean import saved
from tests.stores import store_in


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty project."""
    monkeypatch.setattr("runner.runs.act.outputs_dir", lambda: tmp_path / "outputs")
    return tmp_path


@pytest.fixture
def parsed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The configs that were parsed, by their content."""
    contents: list[str] = []
    parse = yaml.load

    def noted(content: str, Loader: type) -> object:  # noqa: N803 - PyYAML's name
        contents.append(content)
        return parse(content, Loader=Loader)

    monkeypatch.setattr(yaml, "load", noted)
    return contents


def wrote(project: Path, run: str, age: int, config: bytes | None = None) -> None:
    """A folder that a run wrote into so many seconds ago."""
    folder = project / "outputs" / "runs" / f"folder-of-{run}"
    folder.mkdir(parents=True)
    folders.note_run(folder, run)
    (folder / "config.yaml").write_bytes(f"run: {run}\n".encode() if config is None else config)
    (folder / "summary.json").write_text(json.dumps({"eval_accuracy": 0.25, "eval_examples": 7}))
    os.utime(folder / "config.yaml", (10**9 - age, 10**9 - age))


def listed(project: Path, *options: str, uri: str = "none") -> int:
    return main([*options, f"folder={project / 'checkpoints'}", f"uri={uri}"])


def test_only_the_configs_of_rows_that_are_shown_are_read(
    project: Path, parsed: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    for age in range(20):
        wrote(project, f"r{age}", age)
    assert listed(project, "last=3") == 0
    assert parsed == ["run: r0\n", "run: r1\n", "run: r2\n"]
    out = capsys.readouterr().out
    assert "20 runs, " in out
    assert out.count("eval/accuracy 0.2500") == 3
    assert "17 older runs are not shown" in out


def test_the_config_of_a_run_that_is_recorded_elsewhere_is_never_read(project: Path, parsed: list[str]) -> None:
    saved(project / "checkpoints", "left")
    wrote(project, "left", 0)
    uri = store_in(project)
    client = MlflowClient(uri)
    run = client.create_run(client.create_experiment("mine")).info.run_id
    wrote(project, run, 1)
    assert listed(project, "last=0", uri=uri) == 0
    assert not parsed


@pytest.mark.parametrize("damage", [b"a: [1,", b"", b"\xff\xfe\x00\x01", b"a: !!python/object/apply:os.getcwd []"])
def test_a_damaged_config_leaves_its_run_out_with_a_line(
    project: Path, damage: bytes, capsys: pytest.CaptureFixture[str]
) -> None:
    wrote(project, "damaged", 0, damage)
    wrote(project, "next", 1)
    wrote(project, "last", 2)
    assert listed(project, "last=2") == 0
    said = capsys.readouterr()
    assert "folder-of-next" in said.out
    assert "folder-of-last" in said.out
    assert "folder-of-damaged" not in said.out
    assert "2 runs, " in said.out
    line = f"warning: skipping {project / 'outputs' / 'runs' / 'folder-of-damaged' / 'config.yaml'}: "
    assert [one.startswith(line) for one in said.err.splitlines()] == [True]


def test_a_list_of_damaged_runs_alone_names_them_and_fails(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    wrote(project, "damaged", 0, b"a: [1,")
    assert listed(project) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("warning: skipping ")


def test_all_pages_of_a_store_are_read_in_order(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("runner.tracking.paging._PAGE_SIZE", 2)
    client = MlflowClient(store_in(project))
    experiment = client.create_experiment("mine")
    made = [client.create_run(experiment, start_time=1000 + number).info.run_id for number in range(5)]
    assert [record.run_id for record in load(client)] == made
    assert listed(project, uri=store_in(project)) == 0

"""Runs that left checkpoints are found, refused, and started again with their own command line."""

from dataclasses import replace
from pathlib import Path

import pytest

from runner.checkpoint import arguments, runs, storage
from runner.cluster import process
from runner.config import quoting
from runner.errors import ConfigError
from tests.training.checkpoint.test_storage import content, end, file_of, flip, register

OVERRIDES = ["mesh=batch8", "++mesh.axes.batch=4", "optimizer=sgd", "optimizer.learning_rate=0.1", "trainer.epochs=5"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two runs, the second with two checkpoints."""
    for number, (name, steps) in enumerate([("aaaa1111", [5]), ("aaaa2222", [10, 20])]):
        saved = register(tmp_path, name, tracked=True, overrides=OVERRIDES)
        record = {**saved.record, "started": 100.0 + number, runs.RUN_NAME: f"seed={number},batch_size=32"}
        runs.write_record(saved.folder, record)
        for step in steps:
            storage.write(saved.folder, content(step, name))
    return tmp_path


def test_a_run_is_found_by_id_prefix_folder_or_as_the_latest(folder: Path) -> None:
    for wanted, name, step in [
        ("latest", "aaaa2222", None),
        ("aaaa1111", "aaaa1111", None),
        ("aaaa2", "aaaa2222", None),
        (str(folder / "aaaa1111"), "aaaa1111", None),
        ("aaaa2222@10", "aaaa2222", 10),
        ("latest@20", "aaaa2222", 20),
        ("seed=0,batch_size=32", "aaaa1111", None),
        ("seed=1,batch_size=32@10", "aaaa2222", 10),
    ]:
        found, at = runs.find("resume", wanted, folder)
        assert (found.id, at) == (name, step)


def test_a_run_is_found_in_a_folder_whose_path_has_an_at_sign_or_a_quote(tmp_path: Path) -> None:
    root = tmp_path / "ann@work" / "Ann's"
    run = register(root, "aaaa", tracked=False, overrides=OVERRIDES)
    storage.write(run.folder, content(5, "aaaa"))
    assert runs.find("run", str(run.folder), root)[1] is None
    assert runs.find("run", f"{run.folder}@5", root)[1] == 5
    # A copy may have any name.
    run.folder.rename(root / "copy@5")
    assert runs.find("run", str(root / "copy@5"), root)[1] is None
    expanded = arguments.expand([f"resume={quoting.quoted(str(root / 'copy@5'))}"])
    assert arguments.value_of(expanded, "resume") == str(root / "copy@5")


def test_the_best_is_found_by_its_name(folder: Path) -> None:
    storage.write(folder / "aaaa2222", content(10, "aaaa2222", best={"eval/loss": 0.1}))
    assert runs.find("run", "latest@best", folder)[1] == 10


@pytest.mark.parametrize(
    ("wanted", "shown"),
    [
        (
            "nope",
            r"resume=nope: no such run in .*; the newest are aaaa2222 \(seed=1,.*, aaaa1111 .*; set resume=latest",
        ),
        ("aaaa", r"several runs have this name or begin with it; the newest are aaaa2222 .*; set resume=aaaa2222"),
        ("latest@15", r"checkpoints of that run are 10, 20; set resume=aaaa2222@20"),
        ("latest@best", r"checkpoints of that run are 10, 20"),
    ],
)
def test_a_missing_run_or_checkpoint_is_rejected_with_those_that_exist(folder: Path, wanted: str, shown: str) -> None:
    with pytest.raises(ConfigError, match=shown):
        runs.find("resume", wanted, folder)


def test_a_folder_without_runs_is_reported(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no run left a checkpoint in"):
        runs.find("resume", "latest", tmp_path / "nothing")


def test_a_run_that_saved_nothing_yet_does_not_count(folder: Path) -> None:
    register(folder, "bbbb", tracked=False, overrides=[])
    assert runs.find("resume", "latest", folder)[0].id == "aaaa2222"


def test_a_damaged_checkpoint_is_rejected_and_the_one_before_it_suggested(folder: Path) -> None:
    run, _ = runs.find("resume", "latest", folder)
    flip(file_of(storage.place(run.folder, 20), "arrays-00000.safetensors"))
    with pytest.raises(ConfigError, match=r"step 20 is damaged .*; set resume=aaaa2222@10, the one before it"):
        runs.open_checkpoint("resume", run, None)
    assert runs.open_checkpoint("resume", run, 10).step == 10


def test_a_run_that_is_still_running_is_rejected(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run, _ = runs.find("resume", "latest", folder)
    assert runs.ended("resume", run) is run, "this very process"
    running = runs.SavedRun(run.folder, {**run.record, "process": {**process.identity(), process.PID: "1"}})
    monkeypatch.setattr(process, "is_gone", lambda _: False)
    with pytest.raises(ConfigError, match=r"process 1 on .* is still running it"):
        runs.ended("resume", running, lambda _: None)  # the record in the folder is another one
    runs.ended("resume", runs.SavedRun(run.folder, {**running.record, "ended": True}))
    monkeypatch.setattr(process, "is_gone", lambda _: True)
    runs.ended("resume", running)


def expanded(folder: Path, *typed: str) -> list[str]:
    return arguments.expand([f"trainer.checkpoint.folder={folder}", *typed])[:-1]


def test_the_recorded_command_line_is_repeated(folder: Path) -> None:
    found = arguments.expand([f"trainer.checkpoint.folder={folder}", "resume=latest"])
    assert found[: len(OVERRIDES)] == OVERRIDES
    assert found[-1] == f"resume='{(folder / 'aaaa2222').as_posix()}'"
    assert arguments.expand(["run=latest@10", f"trainer.checkpoint.folder={folder}"])[-1].endswith("aaaa2222@10'")


def test_typed_overrides_win_and_a_group_option_drops_recorded_keys_of_that_group(folder: Path) -> None:
    assert "trainer.epochs=5" not in expanded(folder, "resume=latest", "trainer.epochs=6")
    found = expanded(folder, "mesh=single", "optimizer=adam", "resume=latest")
    assert [one for one in found if one.startswith(("mesh", "++mesh", "optimizer"))] == [
        "mesh=single",
        "optimizer=adam",
    ]
    assert "trainer.epochs=5" in found


@pytest.mark.parametrize(
    ("typed", "shown"),
    [
        (["-m", "resume=latest"], "needs a single run, not a multirun; drop -m, or set sweep.resume"),
        (["run=latest", "resume=latest"], "run and resume can't be combined"),
    ],
)
def test_overrides_that_exclude_each_other_are_rejected(folder: Path, typed: list[str], shown: str) -> None:
    with pytest.raises(ConfigError, match=shown):
        expanded(folder, *typed)


@pytest.mark.parametrize("typed", [[], ["mesh=batch8"], ["resume=null"], ["run="]])
def test_a_command_line_without_a_run_is_unchanged(typed: list[str]) -> None:
    assert arguments.expand(typed) == typed


@pytest.mark.parametrize("left", [None, b"", b"{"], ids=["lost", "empty", "torn"])
def test_a_run_whose_record_is_lost_is_found_by_its_checkpoints(tmp_path: Path, left: bytes | None) -> None:
    saved = register(tmp_path, "aaaa1111", tracked=True, overrides=OVERRIDES, lasting={"name": "mine"})
    about = content(10, "aaaa1111")
    storage.write(saved.folder, replace(about, about={**about.about, runs.IN_CHECKPOINTS: dict(saved.record)}))
    record = saved.folder / "run.json"
    if left is None:
        record.unlink()
    else:
        record.write_bytes(left)
    found, _ = runs.find("resume", "latest", tmp_path)
    assert found == saved
    end(found)
    assert runs.find("resume", "aaaa", tmp_path)[0].record["ended"], "the file is there again"

"""What a run goes on from: one process at a time, said before it starts, or as a run of its own."""

import itertools
import re
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
from omegaconf import OmegaConf

from runner.checkpoint import arguments, attempts, files, resume, runs, storage
from runner.checkpoint.reading import Checkpoint
from runner.cluster import process
from runner.config.schema import CheckpointConfig, EarlyStoppingConfig, RunConfig
from runner.engine.lengths import RunLength
from runner.errors import ConfigError, PassingError
from runner.host.lock import locked
from runner.tracking import Tracker
from runner.train.saved import open_saved
from tests.numpy_engine import KnownTask
from tests.training.checkpoint.test_storage import content, end, register

CONTENT = {"a": {"b": [1, None, 1e-7]}}  # as `tests.training.checkpoint.test_storage.ABOUT` has it


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A run that has ended, with three checkpoints, of which the middle one is the best."""
    saved = register(tmp_path, "aaaa", tracked=True, overrides=["trainer.epochs=5"])
    for step in (10, 20, 30):
        storage.write(saved.folder, content(step, "aaaa", best={"eval/loss": 0.1} if step == 20 else {}))
    end(saved)
    return saved.folder


@pytest.fixture
def held() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def previous(held: ExitStack, **given: str) -> resume.Previous:
    found = resume.open_previous(RunConfig(**given), CONTENT, held)
    assert found is not None
    return found


def test_a_run_that_another_process_holds_is_not_resumed(folder: Path, held: ExitStack) -> None:
    with locked(folder / runs.LOCK, wait=False):
        before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
        with pytest.raises(ConfigError, match=r"resume=aaaa: the run is in use by another process") as refused:
            previous(held, resume=str(folder))
        assert "\n" not in str(refused.value)
        assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before
        assert previous(held, branch=str(folder)).branches, "it only reads"
    assert previous(held, resume=str(folder)).checkpoint.step == 30


def test_the_record_is_read_again_under_the_lock(
    folder: Path, held: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the first look and the lock another process may have begun, and be on another machine."""
    hold = runs.locked
    before = runs.find("resume", str(folder), folder)[0].record
    seen = itertools.count(1.0)

    def beat(_: float = 0.0) -> None:
        there = {**process.identity(), process.HOST: "elsewhere"}
        runs.write_record(folder, {**before, "process": there, "ended": False, "seen": next(seen)})

    def late(key: str, run: runs.SavedRun) -> object:
        beat()
        return hold(key, run)

    monkeypatch.setattr(runs, "locked", late)
    monkeypatch.setattr(runs.ended, "__defaults__", (beat,))
    with pytest.raises(ConfigError, match="on elsewhere is still running it"):
        previous(held, resume=str(folder))


def test_later_checkpoints_are_listed_with_what_happens_to_them(folder: Path, held: ExitStack) -> None:
    line = previous(held, resume=f"{folder}@10").describe_other_checkpoints()
    assert line.startswith("resume=aaaa@10: the checkpoints of steps 20, 30 are from after that step and are removed")
    assert "branch=aaaa@10 keeps all" in line
    assert previous(ExitStack(), branch=f"{folder}@10").describe_other_checkpoints() == ""


class Tracked(Tracker):
    """A tracker of a run with an id."""

    def __init__(self, run_id: str | None) -> None:
        self.run_id = run_id


def saved(
    folder: Path, before: resume.Previous | None, tracker: Tracked, monkeypatch: pytest.MonkeyPatch, name: str = "new"
) -> Path:
    """Begins an attempt, as a run does after it is built; returns the folder of its checkpoints."""
    hydra = SimpleNamespace(overrides=SimpleNamespace(task=OmegaConf.create(["trainer.epochs=9", "branch=x"])))
    monkeypatch.setattr(arguments, "HydraConfig", SimpleNamespace(get=lambda: hydra))
    monkeypatch.setattr(arguments, "composed_with", list)
    config = CheckpointConfig(folder=str(folder.parent))
    with ExitStack() as lock:
        run, _ = attempts.begin(config, None, "batch=1", tracker, Path(name), before, lock)
        assert isinstance(run.folder, Path)
        return run.folder


def test_a_run_resumed_before_its_end_repeats_steps_and_a_branch_never_does(folder: Path, held: ExitStack) -> None:
    steps = storage.steps(folder)
    assert len(steps) > 1
    assert not previous(held, branch=f"{folder}@{steps[0]}").repeats_steps
    assert previous(held, resume=f"{folder}@{steps[0]}").repeats_steps
    held.close()
    assert not previous(held, resume=str(folder)).repeats_steps


def test_a_branch_is_a_new_run_and_its_origin_is_unchanged(
    folder: Path, held: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    origin, tracker = previous(held, branch=f"{folder}@10"), Tracked("bbbb")
    tracker.run_name = "seed=1"
    assert saved(folder, origin, tracker, monkeypatch) == folder.parent / "bbbb"
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before
    record = files.read_json(folder.parent / "bbbb" / "run.json", 10_000)
    assert record["overrides"] == ["trainer.epochs=9"], "a resume of the branch does not branch again"
    assert (record["origin"], record["run_name"]) == ("aaaa@10", "seed=1")


def test_a_resumed_run_stays_in_its_folder_whatever_its_name(
    folder: Path, held: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = folder.rename(folder.with_name("copy"))
    runs.write_record(copy, {**runs.read(copy).record, "run_name": "seed=1"})
    tracker = Tracked("aaaa")
    assert saved(copy, previous(held, resume=str(copy)), tracker, monkeypatch) == copy
    assert runs.read(copy).record["run_name"] == "seed=1", "that of its sweep, which this process does not know"
    assert [path.name for path in copy.parent.iterdir()] == ["copy"]


def test_a_new_run_uses_no_folder_that_has_checkpoints(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tracker = Tracked(None)
    own = saved(folder, None, tracker, monkeypatch, name="outputs/aaaa")
    assert re.fullmatch("aaaa-[0-9a-f]{8}", own.name)
    assert storage.steps(folder) == [10, 20, 30]


def test_the_loser_of_two_starts_leaves_the_record_alone(
    folder: Path, held: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = (folder / "run.json").read_bytes()
    (folder / "attempt-1").write_text("{}")
    with pytest.raises(PassingError, match="another process has begun the run at the same time"):
        saved(folder, previous(held, resume=str(folder)), Tracked("aaaa"), monkeypatch)
    assert (folder / "run.json").read_bytes() == before


def test_a_branch_with_nothing_to_train_is_rejected(folder: Path, held: ExitStack) -> None:
    origin = previous(held, branch=str(folder))
    resume.check_unfinished(origin, RunLength(31, epoch=10, period=10), KnownTask())
    with pytest.raises(
        ConfigError,
        match=r"branch=aaaa: the run has done all of its 30 steps; set trainer\.steps=31 or more to train longer",
    ):
        resume.check_unfinished(origin, RunLength(30, epoch=10, period=10), KnownTask())


def test_evaluation_rejects_branch(folder: Path) -> None:
    with pytest.raises(ConfigError, match=r"run=null: runner.evaluate needs a run that left checkpoints; set run="):
        open_saved(RunConfig(branch="x").run, CheckpointConfig(), "runner.evaluate")
    assert arguments.expand([f"branch={folder}@10"]) == ["trainer.epochs=5", f"branch='{folder.as_posix()}@10'"]


def test_a_branch_of_a_run_with_restarts_has_none(tmp_path: Path) -> None:
    typed = ["cluster=local", "cluster.restarts=3", "trainer.epochs=5"]
    run = register(tmp_path, "aaaa", tracked=True, overrides=typed)
    storage.write(run.folder, content(10, "aaaa"))
    assert arguments.expand([f"branch={run.folder}"])[:-1] == ["cluster=local", "trainer.epochs=5"]
    assert arguments.expand([f"resume={run.folder}"])[:-1] == typed
    assert "cluster.restarts=9" in arguments.expand([f"branch={run.folder}", "cluster.restarts=9"])


def test_a_damaged_record_is_rejected_by_its_folder_and_skipped_with_a_warning_otherwise(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "run.json").write_text('{"run": "aaaa"}')
    with pytest.raises(ConfigError, match=r"run.json is corrupted"):
        runs.find("resume", str(folder), folder.parent)
    later = register(folder.parent, "bbbb", tracked=True, overrides=[])
    storage.write(later.folder, content(5, "bbbb"))
    assert runs.find("run", "latest", folder.parent)[0].id == "bbbb"
    assert "run.json is corrupted" in capsys.readouterr().err


def test_a_checkpoint_of_another_run_is_rejected(folder: Path) -> None:
    storage.write(folder, content(40, "bbbb"))
    run, _ = runs.find("resume", "latest", folder.parent)
    with pytest.raises(ConfigError, match=r"step-000000040 is of run bbbb\); set resume=aaaa@30"):
        runs.open_checkpoint("resume", run, None)


def test_an_invalid_history_is_rejected(folder: Path) -> None:
    made = content(40, "aaaa")
    storage.write(folder, storage.Content(40, made.shards, {"train": []}, made.about))
    run, _ = runs.find("resume", "latest", folder.parent)
    with pytest.raises(ConfigError, match=r"history.json can't be read"):
        runs.open_checkpoint("resume", run, None)


def test_with_early_stopping_the_best_is_opened(folder: Path) -> None:
    early = {"trainer": {"early_stopping": {"metric": EarlyStoppingConfig("eval/loss").metric}}}
    made = content(30, "aaaa")
    storage.write(folder, storage.Content(30, made.shards, made.history, {**made.about, "config": early}))
    run, _ = runs.find("run", "latest", folder.parent)
    assert runs.open_checkpoint("run", run, None).step == 20
    assert runs.open_checkpoint("resume", run, None).step == 30


@pytest.mark.parametrize(
    ("before", "now", "key"),
    [
        ({"holdout": 0.1}, {"holdout": 0.2}, "dataset.holdout=0.2"),
        ({}, {"holdout": 0.2}, "dataset.holdout=0.2"),
        ({"holdout": 0.0}, {"holdout": None}, "dataset.holdout=null"),
        ({"test": "test"}, {"test": None}, "dataset.test=null"),
        ({"_target_": "a.load"}, {"_target_": "b.load"}, "dataset._target_=b.load"),
        ({"batch_size": 64}, {"batch_size": 32}, "dataset.batch_size=32"),
        ({"standardize": True}, {"standardize": False}, "dataset.standardize=false"),
        ({"sequence_length": 32}, {"sequence_length": 16}, "dataset.sequence_length=16"),
        ({"parts": [{"weight": 1}]}, {"parts": [{"weight": 3}]}, None),
    ],
)
def test_a_resumed_run_must_see_the_same_examples(
    before: dict[str, object], now: dict[str, object], key: str | None
) -> None:
    held = cast(Checkpoint, SimpleNamespace(about={"config": {"dataset": before}}))
    if key is None:
        resume.check_examples(held, {"dataset": now})
        return
    with pytest.raises(ConfigError, match=f"{key}: the run has trained with"):
        resume.check_examples(held, {"dataset": now})
    if key.startswith(("dataset.standardize", "dataset.sequence_length")):
        resume.check_examples(held, {"dataset": now}, order_only=True)  # as in a branch


def test_a_run_whose_data_has_changed_is_not_resumed() -> None:
    resume.check_data(cast(Checkpoint, SimpleNamespace(about={"run": "r"})), "b")
    held = cast(Checkpoint, SimpleNamespace(about={"run": "r", "data_sha256": "a"}))
    resume.check_data(held, "a")
    with pytest.raises(ConfigError, match="the data has changed since run r began"):
        resume.check_data(held, "b")

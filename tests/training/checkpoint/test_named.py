"""`resume=auto name=...`: who gets the run, where it continues, and what a later attempt sees of an earlier one."""

import json
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from runner.checkpoint import arguments, attempts, files, resume, runs, storage
from runner.checkpoint.runs import SavedRun
from runner.cluster import process
from runner.config.schema import AUTO, RunConfig
from runner.errors import ConfigError, PassingError
from runner.host.lock import locked
from tests.configs import with_keys
from tests.training.checkpoint.test_manifest import forge
from tests.training.checkpoint.test_storage import content, end, flip, register

ELSEWHERE = {process.HOST: "elsewhere", process.PID: "7", process.BOOT: "a/b/1", process.MACHINE: "m//1"}
CONTENT = {"a": {"b": [1, None, 1e-7]}}  # as `tests.training.checkpoint.test_storage.ABOUT` has it


@pytest.fixture
def config(tmp_path: Path) -> RunConfig:
    checked = with_keys(RunConfig(), {"trainer.checkpoint.folder": str(tmp_path)})
    return replace(checked, resume=AUTO, name="exp1")


@pytest.fixture
def locks() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def saved(folder: Path, *steps: int, name: str = "exp1", finished: bool = False) -> Path:
    """Makes a run with checkpoints, which its process has left."""
    run = register(folder, "aaaa", tracked=True, overrides=["trainer.epochs=5"], name="exp1", lasting={"name": name})
    for step in steps:
        storage.write(run.folder, content(step, "aaaa"))
    end(run, finished=finished)
    return run.folder


def test_the_first_start_begins_and_a_later_one_continues_from_the_last_checkpoint(
    config: RunConfig, locks: ExitStack, tmp_path: Path
) -> None:
    assert resume.open_previous(config, CONTENT, locks) is None
    locks.close()
    saved(tmp_path, 10, 20)
    previous = resume.open_previous(config, CONTENT, locks)
    assert previous is not None
    assert (previous.checkpoint.step, previous.run.tracking_id) == (20, "aaaa")
    assert not previous.branches


def test_a_run_that_died_before_its_first_checkpoint_begins_again_in_the_same_tracked_run(
    config: RunConfig, locks: ExitStack, tmp_path: Path
) -> None:
    saved(tmp_path)
    assert resume.open_previous(config, CONTENT, locks) is None
    begun = runs.begun(tmp_path / "exp1")
    assert begun is not None
    assert begun.tracking_id == "aaaa"


def test_of_two_starts_at_once_the_second_names_the_first(config: RunConfig, locks: ExitStack, tmp_path: Path) -> None:
    with locked(tmp_path / "exp1" / runs.LOCK, wait=False), pytest.raises(ConfigError) as raised:
        resume.open_previous(config, CONTENT, locks)
    assert str(raised.value).startswith("name=exp1: the run is in use by another process")
    assert resume.open_previous(config, CONTENT, locks) is None, "the lock is free again"


def test_a_damaged_last_checkpoint_is_skipped_with_a_warning(
    config: RunConfig, locks: ExitStack, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = saved(tmp_path, 10, 20)
    (arrays,) = storage.place(folder, 20).glob("*/arrays*")
    flip(arrays)
    previous = resume.open_previous(config, CONTENT, locks)
    assert previous is not None
    assert previous.checkpoint.step == 10
    assert "its checkpoint of step 20 is damaged" in capsys.readouterr().out
    locks.close()
    (arrays,) = storage.place(folder, 10).glob("*/arrays*")
    flip(arrays)
    with pytest.raises(ConfigError, match="its checkpoint of step 10 is damaged"):
        resume.open_previous(config, CONTENT, locks)


def test_a_checkpoint_of_a_newer_format_is_not_skipped(config: RunConfig, locks: ExitStack, tmp_path: Path) -> None:
    folder = saved(tmp_path, 10, 20)
    forge(storage.place(folder, 20), lambda found: found.update(format=storage.FORMAT + 1))
    with pytest.raises(ConfigError, match="use the version that wrote it"):
        resume.open_previous(config, CONTENT, locks)


@pytest.mark.parametrize(("typed", "is_same"), [(["trainer.epochs=5"], True), (["trainer.epochs=9"], False)])
def test_the_command_that_has_finished_ends_well_and_a_longer_one_continues(
    config: RunConfig,
    locks: ExitStack,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    typed: list[str],
    is_same: bool,
) -> None:
    monkeypatch.setattr(resume, "recorded_overrides", lambda: typed)
    saved(tmp_path, 10, finished=True)
    if is_same:
        with pytest.raises(SystemExit) as ended:
            resume.open_previous(config, CONTENT, locks)
        assert ended.value.code == 0
    else:
        assert resume.open_previous(config, CONTENT, locks) is not None


def test_a_folder_of_another_run_is_left_alone(config: RunConfig, locks: ExitStack, tmp_path: Path) -> None:
    saved(tmp_path, 10, name="other")
    with pytest.raises(ConfigError, match="run aaaa, which has another name; choose another name"):
        resume.open_previous(config, CONTENT, locks)


@pytest.fixture
def elsewhere(tmp_path: Path) -> SavedRun:
    """The run as a process of another machine has left it, or still trains it."""
    folder = saved(tmp_path, 10)
    record = json.loads((folder / runs.RECORD).read_text())
    record = {key: value for key, value in record.items() if key not in ("ended", "sha256")}
    runs.write_record(folder, {**record, "process": ELSEWHERE})
    return SavedRun(folder, {**record, "process": ELSEWHERE})


def test_a_run_of_a_machine_that_is_out_of_sight_continues_if_it_writes_nothing(
    config: RunConfig, locks: ExitStack, elsewhere: SavedRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    waited: list[float] = []
    monkeypatch.setattr(runs.ended, "__defaults__", (waited.append,))
    previous = resume.open_previous(config, CONTENT, locks)
    assert previous is not None
    assert previous.run == elsewhere
    assert sum(waited) >= runs.SILENT_S


@pytest.mark.parametrize("ends", [False, True])
def test_a_run_of_a_machine_that_still_writes_is_left_to_it_unless_it_ends(
    config: RunConfig, locks: ExitStack, elsewhere: SavedRun, monkeypatch: pytest.MonkeyPatch, ends: bool
) -> None:
    def beat(_: float) -> None:
        runs.write_record(elsewhere.folder, {**elsewhere.record, "seen": 1.0, "ended": ends})

    monkeypatch.setattr(runs.ended, "__defaults__", (beat,))
    if ends:
        assert resume.open_previous(config, CONTENT, locks) is not None
    else:
        with pytest.raises(PassingError, match="process 7 on elsewhere is still running it; wait for it or stop it"):
            resume.open_previous(config, CONTENT, locks)


def begun(folder: Path) -> SavedRun:
    own = {"first": 0, "step": 0, "mesh": "batch=2", "ended": ""}
    return register(folder, "aaaa", tracked=False, overrides=[], lasting={"attempts": [own]})


def record(run: SavedRun) -> dict[str, Any]:
    return files.read_json(run.folder / runs.RECORD, 10_000)


def test_an_attempt_keeps_how_far_it_came_and_the_first_reason_of_its_end(tmp_path: Path) -> None:
    run = begun(tmp_path)
    journal = attempts.Journal(run, pytest.fail)
    journal.update(7)
    journal.end("the network is gone")
    journal.end(attempts.FINISHED)
    found = record(run)
    assert (found["ended"], found["finished"]) == (True, False)
    assert found["attempts"] == [{"first": 0, "step": 7, "mesh": "batch=2", "ended": "the network is gone"}]
    more = [*found["attempts"], {"first": 5, "step": 9, "mesh": "batch=1", "ended": ""}]
    assert attempts.causes(more) == ("1: steps 0 to 7, the network is gone; 2: steps 5 to 9, on batch=1, finished")


@pytest.mark.parametrize("is_other", [False, True])
def test_an_attempt_that_another_one_has_replaced_ends_itself_and_a_lost_record_is_written_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_other: bool
) -> None:
    monkeypatch.setattr(attempts, "BEAT_S", 0.01)
    run = begun(tmp_path)
    path = run.folder / runs.RECORD
    if is_other:
        runs.write_record(run.folder, {**run.record, "process": ELSEWHERE})
    else:
        path.unlink()
    lost: list[str] = []
    journal = attempts.Journal(run, lost.append)
    while not (lost or path.exists()) or (is_other and not lost):
        time.sleep(0.01)
    journal.end("")
    assert [line.startswith("another process has begun this run in") for line in lost] == [True] * is_other


def test_after_a_failed_write_the_next_beat_writes_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(attempts, "BEAT_S", 0.01)
    failures = [OSError(5, "broken"), OSError(5, "broken")]
    write = runs.write_record

    def failing(*arguments: Any) -> None:
        if failures:
            raise failures.pop()
        write(*arguments)

    run = begun(tmp_path)
    monkeypatch.setattr(runs, "write_record", failing)
    journal = attempts.Journal(run, pytest.fail)
    journal.update(7)
    while record(run)["attempts"][0]["step"] != 7:
        time.sleep(0.01)
    journal.end("")
    assert capsys.readouterr().err.count("could not record the attempt") == 1


def test_a_claim_is_one_process_s_unless_that_is_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "attempt-1").write_text(json.dumps(ELSEWHERE))
    with pytest.raises(PassingError, match="another process has begun the run at the same time"):
        attempts.claim(tmp_path, 1)
    monkeypatch.setattr(process, "is_gone", lambda _: True)
    attempts.claim(tmp_path, 1)
    assert json.loads((tmp_path / "attempt-1").read_text()) == process.identity()


def test_the_command_line_of_a_named_run_gets_nothing_recorded(tmp_path: Path) -> None:
    saved(tmp_path, 10)
    typed = ["resume=auto", "name=exp1", f"trainer.checkpoint.folder={tmp_path}"]
    assert arguments.expand(typed) == typed
    with pytest.raises(ConfigError, match="needs a single run, not a multirun"):
        arguments.expand(["-m", *typed])
    run, _ = runs.find("run", "exp1", tmp_path)
    assert run.id == "aaaa", "other commands find it by its name"

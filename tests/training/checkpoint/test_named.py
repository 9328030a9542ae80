"""`resume=auto name=...`: who gets the run, where it continues, and what a later attempt sees of an earlier one."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from runner.checkpoint import arguments, attempts, resume, runs, storage
from runner.checkpoint.attempts import Attempt
from runner.config.schema import AUTO, RunConfig
from runner.errors import ConfigError
from runner.host.lock import locked
from runner.tracking import process
from tests.configs import with_keys
from tests.training.checkpoint.test_manifest import forge
from tests.training.checkpoint.test_storage import content, flip

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
    run = runs.register(
        folder, "aaaa", tracked=True, overrides=["trainer.epochs=5"], name="exp1", lasting={"name": name}
    )
    for step in steps:
        storage.write(run.folder, content(step, "aaaa"))
    runs.end(run, finished=finished)
    return run.folder


def test_the_first_start_begins_and_a_later_one_continues_from_the_last_checkpoint(
    config: RunConfig, locks: ExitStack, tmp_path: Path
) -> None:
    assert resume.open_previous(config, CONTENT, locks) is None
    locks.close()
    saved(tmp_path, 10, 20)
    previous = resume.open_previous(config, CONTENT, locks)
    assert previous is not None
    assert (previous.checkpoint.step, previous.resumed_run_id) == (20, "aaaa")
    assert not previous.branches


def test_a_run_that_died_before_its_first_checkpoint_begins_again_in_the_same_tracked_run(
    config: RunConfig, locks: ExitStack, tmp_path: Path
) -> None:
    saved(tmp_path)
    assert resume.open_previous(config, CONTENT, locks) is None
    begun = runs.begun("name", tmp_path / "exp1")
    assert begun is not None
    assert begun.tracking_id == "aaaa"


def test_of_two_starts_at_once_the_second_names_the_first(config: RunConfig, locks: ExitStack, tmp_path: Path) -> None:
    with locked(tmp_path / "exp1" / runs.LOCK, wait=False), pytest.raises(ConfigError) as raised:
        resume.open_previous(config, CONTENT, locks)
    assert str(raised.value).startswith("name=exp1: the run is in use by process")
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
    with pytest.raises(ConfigError, match="its checkpoint of step 20 is damaged"):
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


def on_another_machine(folder: Path) -> None:
    run = saved(folder, 10)
    record = json.loads((run / runs.RECORD).read_text())
    record = {key: value for key, value in record.items() if key not in ("ended", "finished", "sha256")}
    runs.write_record(run, {**record, "process": ELSEWHERE})  # as the other machine has written it
    attempts.path_of(run, 1).write_text(json.dumps({"number": 1, "step": 12}))


def test_a_run_of_a_machine_that_is_out_of_sight_continues_if_it_writes_nothing(
    config: RunConfig, locks: ExitStack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    on_another_machine(tmp_path)
    waited: list[float] = []
    monkeypatch.setattr(attempts.is_silent, "__defaults__", (waited.append,))
    assert resume.open_previous(config, CONTENT, locks) is not None
    assert sum(waited) >= attempts.SILENT_S


def test_a_run_of_a_machine_that_still_writes_is_left_to_it(
    config: RunConfig, locks: ExitStack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    on_another_machine(tmp_path)
    path = attempts.path_of(tmp_path / "exp1", 1)

    def beat(_: float) -> None:
        path.write_text(json.dumps({"number": 1, "step": 13}))

    monkeypatch.setattr(attempts.is_silent, "__defaults__", (beat,))
    with pytest.raises(ConfigError, match="is still running it, or can't be seen from here"):
        resume.open_previous(config, CONTENT, locks)


def test_a_run_of_another_machine_that_ends_during_the_wait_continues(
    locks: ExitStack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    on_another_machine(tmp_path)
    path = attempts.path_of(tmp_path / "exp1", 1)

    def end(_: float) -> None:
        other = runs.begun("name", tmp_path / "exp1")
        assert other is not None
        runs.end(other, finished=True)
        path.write_text(json.dumps({"number": 1, "step": 13, "ended": "finished"}))

    monkeypatch.setattr(attempts.is_silent, "__defaults__", (end,))
    run = resume.take("exp1", tmp_path / "exp1", locks, str)
    assert run is not None
    assert run.record["finished"]


def test_attempts_are_numbered_and_keep_why_they_ended(tmp_path: Path) -> None:
    first = attempts.begin(tmp_path, 0)
    first.update(7)
    first.end("the network is gone")
    first.end("a later reason")
    second = attempts.begin(tmp_path, 5)
    second.end(attempts.FINISHED)
    recorded = attempts.read(tmp_path)
    assert [(one.number, one.first, one.step, one.ended) for one in recorded] == [
        (1, 0, 7, "the network is gone"),
        (2, 5, 5, "finished"),
    ]


def test_a_damaged_attempt_is_left_out(tmp_path: Path) -> None:
    for number, text in enumerate(('{"number": 1}', '{"number": "x"}', "{", '{"other": 1}'), start=1):
        attempts.path_of(tmp_path, number).write_text(text)
    (tmp_path / "attempt-x.json").write_text("{}")
    assert attempts.read(tmp_path) == [Attempt(1)]


def test_an_attempt_that_another_one_has_replaced_ends_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attempts, "BEAT_S", 0.01)
    lost: list[str] = []
    journal = attempts.Journal(tmp_path, 1, 0, lost.append)
    attempts.path_of(tmp_path, 2).write_text("{}")
    journal._thread.join(10.0)
    assert len(lost) == 1
    assert "another process has begun attempt-2.json" in lost[0]


def test_an_earlier_attempt_ends_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attempts, "BEAT_S", 0.01)
    lost: list[str] = []
    attempts.path_of(tmp_path, 1).write_text("{}")
    journal = attempts.Journal(tmp_path, 2, 0, lost.append)
    attempts.path_of(tmp_path, 2).unlink()
    while not attempts.path_of(tmp_path, 2).exists():
        time.sleep(0.01)
    journal.end("")
    assert lost == []


def test_after_a_failed_write_the_next_beat_writes_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(attempts, "BEAT_S", 0.01)
    failures = [OSError(5, "broken"), OSError(5, "broken")]
    as_text = attempts._as_text

    def failing(attempt: Attempt) -> str:
        if failures:
            raise failures.pop()
        return as_text(attempt)

    journal = attempts.Journal(tmp_path, 1, 0, pytest.fail)
    monkeypatch.setattr(attempts, "_as_text", failing)
    journal.update(7)
    while attempts.read(tmp_path)[0].step != 7:
        time.sleep(0.01)
    journal.end("")
    assert capsys.readouterr().err.count("could not record the attempt") == 1


def test_the_command_line_of_a_named_run_gets_nothing_recorded(tmp_path: Path) -> None:
    saved(tmp_path, 10)
    typed = ["resume=auto", "name=exp1", f"trainer.checkpoint.folder={tmp_path}"]
    assert arguments.expand(typed) == typed
    with pytest.raises(ConfigError, match="needs a single run, not a multirun"):
        arguments.expand(["-m", *typed])
    run, _ = runs.find("run", "exp1", tmp_path)
    assert run.id == "aaaa", "other commands find it by its name"

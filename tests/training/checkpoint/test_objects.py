"""Checkpoints in an object store: what they hold, how they are replaced and removed, and who may write them."""

import threading
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import cast

import numpy as np
import pytest

pytest.importorskip("obstore")

from runner.checkpoint import attempts, files, manifest, runs, storage
from runner.checkpoint.files import StoreError
from runner.checkpoint.metric_history import to_json
from runner.checkpoint.places import ObjectPath, Place
from runner.checkpoint.reading import Checkpoint
from runner.checkpoint.recorder import MetricRecorder
from runner.checkpoint.runs import SavedRun
from runner.checkpoint.saver import Saver
from runner.cluster import process
from runner.config.schema import CheckpointConfig
from runner.errors import ConfigError
from runner.tracking import Tracker
from tests.training.checkpoint.test_files import below
from tests.training.checkpoint.test_storage import WHOLE, content, end, register

# The contents that are saved here do not depend on it.
RECORDER = cast(MetricRecorder, None)


@pytest.fixture
def folder(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ObjectPath:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return ObjectPath("memory://test-objects", request.node.name)


def test_a_checkpoint_is_the_same_as_in_a_local_folder(folder: ObjectPath, tmp_path: Path) -> None:
    local = Checkpoint(storage.write(tmp_path / "local", content()))
    stored = Checkpoint(storage.write(folder, content()))
    assert isinstance(stored.folder, ObjectPath)
    assert set(stored) == set(local)
    for path in local:
        np.testing.assert_array_equal(stored[path], local[path])
        index = tuple(slice(0, max(size // 2, 1)) for size in local.shape(path))
        np.testing.assert_array_equal(stored.part(path, index), local.part(path, index))
    np.testing.assert_equal(to_json(stored.history()), to_json(local.history()))
    assert {**stored.about, manifest.FILES_FOLDER: ""} == {**local.about, manifest.FILES_FOLDER: ""}
    assert storage.steps(folder) == [3]
    assert storage.size(folder, 3) > 0


def test_a_store_that_does_not_answer_does_not_show_as_files_that_no_run_wrote(
    folder: ObjectPath, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    saver = Saver(CheckpointConfig(keep=1), folder, lambda step, _: content(step), said.append)

    def fail(path: ObjectPath, *_: object) -> None:
        raise StoreError(f"{path}: 503")

    with monkeypatch.context() as context:
        context.setattr(files, "remove", fail)
        saver.save(1, RECORDER)
        saver.save(2, RECORDER)
        saver.close()
    path = f"{folder}/step-000000001"
    assert said == [f"could not remove {path}: {path}/checkpoint.json: 503"]


def test_the_manifest_is_the_commit(folder: ObjectPath, monkeypatch: pytest.MonkeyPatch) -> None:
    storage.write(folder, content(1))

    def fail(path: ObjectPath, _: bytes) -> None:
        raise StoreError(f"{path}: 503")

    with monkeypatch.context() as context:
        context.setattr(files, "write", fail)
        for step in (1, 2):
            with pytest.raises(StoreError):
                storage.write(folder, content(step, run="other"))
    assert storage.steps(folder) == [1]
    assert Checkpoint(storage.place(folder, 1)).about["run"] == "r"
    # The write may have succeeded nonetheless, so its files stay until the run is opened again.
    assert any(path.startswith("step-000000002/") for path in below(folder))
    storage.clean(folder)
    assert {path.partition("/")[0] for path in below(folder)} == {"step-000000001"}
    assert Checkpoint(storage.place(folder, 1))


def test_a_checkpoint_of_the_same_step_replaces_the_former_one_at_once(folder: ObjectPath) -> None:
    storage.write(folder, content())
    before = set(below(folder))
    opened = Checkpoint(storage.place(folder, 3))
    storage.write(folder, content(run="other"))
    after = set(below(folder))
    assert Checkpoint(storage.place(folder, 3)).about["run"] == "other"
    assert len(before) == len(after)
    # What was read before stays readable.
    np.testing.assert_array_equal(opened["d1/kernel"], WHOLE)


def test_files_stay_beside_a_manifest_that_can_not_be_read(folder: ObjectPath) -> None:
    place = storage.write(folder, content())
    assert isinstance(place, ObjectPath)
    files.write(place / manifest.NAME, b"{")
    before = set(below(place))
    storage.clean(folder)
    assert set(below(place)) == before
    files.remove(place / manifest.NAME)
    storage.clean(folder)
    assert below(place) == set()


def test_a_store_that_does_not_answer_is_no_damage(folder: ObjectPath, monkeypatch: pytest.MonkeyPatch) -> None:
    place = storage.write(folder, content())

    def fail(*_: object) -> bytes:
        raise ValueError("503")

    monkeypatch.setattr(files.obstore, "get", fail)
    with pytest.raises(StoreError):
        Checkpoint(place)
    with pytest.raises(StoreError):
        storage.is_checkpoint(place)


def test_a_step_waits_for_no_upload(folder: ObjectPath, monkeypatch: pytest.MonkeyPatch) -> None:
    """The store answers only after the step has gone on; by then nothing is saved, and afterwards everything is."""
    may_answer = threading.Event()
    write = files.write_pieces

    def held_up(path: Place, pieces: Iterator[memoryview]) -> None:
        assert may_answer.wait(30)
        write(path, pieces)

    monkeypatch.setattr(files, "write_pieces", held_up)
    saver = Saver(CheckpointConfig(), folder, lambda step, _: content(step), pytest.fail)
    saver.save(1, RECORDER)
    saver.save(2, RECORDER)
    assert storage.steps(folder) == []
    may_answer.set()
    saver.close()
    assert storage.steps(folder) == [1, 2]


def registered(folder: ObjectPath) -> SavedRun:
    run = register(folder, "r", tracked=False, overrides=["mesh=batch8"])
    storage.write(run.folder, content())
    return run


def test_a_run_is_found_by_its_name_and_its_url(folder: ObjectPath) -> None:
    run = registered(folder)
    for reference in ("latest", "r", f"{folder}/r", f"{folder}/r@3"):
        found, step = runs.find("resume", reference, folder)
        assert found.folder == run.folder
        assert step == (3 if reference.endswith("@3") else None)
    end(run, finished=True)
    assert runs.find("run", "r", folder)[0].record["finished"]


@pytest.mark.parametrize("is_running", [False, True])
def test_a_run_of_another_machine_continues_only_if_its_record_is_silent(
    folder: ObjectPath, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], is_running: bool
) -> None:
    monkeypatch.setattr(attempts, "recorded_overrides", list)
    monkeypatch.setattr(attempts, "folder_of", lambda _: folder)
    there = register(folder, "exp1", tracked=False, overrides=[], lasting={"name": "exp1"})
    other = {**there.record, "process": {**process.identity(), process.HOST: "elsewhere", process.BOOT: "a/b/c"}}
    runs.write_record(there.folder, other)

    def look(_: float) -> None:
        if is_running:
            runs.write_record(there.folder, {**other, "seen": 9.0})

    monkeypatch.setattr(runs.ended, "__defaults__", (look,))
    begin = partial(attempts.begin, CheckpointConfig(), "exp1", "batch=1", Tracker(), Path("unused"), None)
    with ExitStack() as locks:
        if is_running:
            with pytest.raises(ConfigError, match="on elsewhere is still running it"):
                begin(locks)
            assert files.names(there.folder) == ["run.json"]
        else:
            _, journal = begin(locks)
            assert journal is not None
            journal.update(5)
    assert "to see whether an earlier attempt still runs" in capsys.readouterr().out
    if not is_running:
        (attempt,) = files.read_json(there.folder / "run.json", 10_000)["attempts"]
        assert (attempt["step"], attempt["ended"]) == (5, "finished")
        with pytest.raises(FileExistsError):
            files.create(there.folder / "attempt-1", b"another process")

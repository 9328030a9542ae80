"""Checkpoints in an object store: what they hold, how they are replaced and removed, and who may write them."""

from __future__ import annotations

import threading
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import cast

import numpy as np
import pytest

pytest.importorskip("obstore")

from runner.checkpoint import attempts, manifest, recovery, runs, storage
from runner.checkpoint.metric_history import to_json
from runner.checkpoint.reading import Checkpoint
from runner.checkpoint.recorder import MetricRecorder
from runner.checkpoint.runs import SavedRun
from runner.checkpoint.saver import Saver
from runner.config.schema import CheckpointConfig
from runner.errors import ConfigError
from runner.host.stores import client
from runner.host.stores.client import StoreError
from runner.host.stores.urls import ObjectPath
from runner.tracking import Tracker, process
from tests.training.checkpoint.test_storage import WHOLE, content

# The contents that are saved here do not depend on it.
RECORDER = cast(MetricRecorder, None)


@pytest.fixture
def folder(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ObjectPath:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    client._copies.cache_clear()
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
    assert storage.saved_at(folder) == storage.saved_at(tmp_path / "local") > 0


def test_a_store_that_does_not_answer_does_not_show_as_files_that_no_run_wrote(
    folder: ObjectPath, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    saver = Saver(CheckpointConfig(keep=1), folder, lambda step, _: content(step), said.append)

    def fail(path: ObjectPath, *_: object) -> None:
        raise StoreError(f"{path}: 503")

    with monkeypatch.context() as context:
        context.setattr(client, "remove", fail)
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
        context.setattr(client, "write", fail)
        for step in (1, 2):
            with pytest.raises(StoreError):
                storage.write(folder, content(step, run="other"))
    assert storage.steps(folder) == [1]
    assert Checkpoint(storage.place(folder, 1)).about["run"] == "r"
    # The write may have succeeded nonetheless, so its files stay until the run is opened again.
    assert any(path.startswith("step-000000002/") for path in client.below(folder))
    storage.clean(folder)
    assert {path.partition("/")[0] for path in client.below(folder)} == {"step-000000001"}
    assert Checkpoint(storage.place(folder, 1))


def test_a_checkpoint_of_the_same_step_replaces_the_former_one_at_once(folder: ObjectPath) -> None:
    storage.write(folder, content())
    before = set(client.below(folder))
    opened = Checkpoint(storage.place(folder, 3))
    storage.write(folder, content(run="other"))
    after = set(client.below(folder))
    assert Checkpoint(storage.place(folder, 3)).about["run"] == "other"
    assert len(before) == len(after)
    # What was read before stays readable.
    np.testing.assert_array_equal(opened["d1/kernel"], WHOLE)


def test_files_stay_beside_a_manifest_that_can_not_be_read(folder: ObjectPath) -> None:
    place = storage.write(folder, content())
    assert isinstance(place, ObjectPath)
    data = client.read(place / manifest.NAME)
    client.write(place / manifest.NAME, data[:-20])
    before = set(client.below(place))
    storage.clean(folder)
    assert set(client.below(place)) == before
    client.remove(place / manifest.NAME)
    storage.clean(folder)
    assert client.below(place) == {}


def test_a_store_that_does_not_answer_is_no_damage(folder: ObjectPath, monkeypatch: pytest.MonkeyPatch) -> None:
    place = storage.write(folder, content())

    def fail(path: ObjectPath, *_: object) -> bytes:
        raise StoreError(f"{path}: 503")

    monkeypatch.setattr(client, "read", fail)
    with pytest.raises(StoreError):
        Checkpoint(place)
    with pytest.raises(StoreError):
        storage.is_checkpoint(place)


def test_a_step_waits_for_no_upload(folder: ObjectPath, monkeypatch: pytest.MonkeyPatch) -> None:
    """The store answers only after the step has gone on; by then nothing is saved, and afterwards everything is."""
    may_answer = threading.Event()
    writing = client.writing

    def held_up(path: ObjectPath) -> AbstractContextManager[client.Writer]:
        assert may_answer.wait(30)
        return writing(path)

    monkeypatch.setattr(client, "writing", held_up)
    saver = Saver(CheckpointConfig(), folder, lambda step, _: content(step), pytest.fail)
    saver.save(1, RECORDER)
    saver.save(2, RECORDER)
    assert storage.steps(folder) == []
    may_answer.set()
    saver.close()
    assert storage.steps(folder) == [1, 2]


def registered(folder: ObjectPath) -> SavedRun:
    run = runs.register(folder, "r", tracked=False, overrides=["mesh=batch8"])
    storage.write(run.folder, content())
    return run


def test_a_run_is_found_by_its_name_and_its_url(folder: ObjectPath) -> None:
    run = registered(folder)
    for reference in ("latest", "r", f"{folder}/r", f"{folder}/r@3"):
        found, step = runs.find("resume", reference, folder)
        assert found.folder == run.folder
        assert step == (3 if reference.endswith("@3") else None)
    runs.end(run, finished=True)
    assert runs.find("run", "r", folder)[0].record["finished"]


def of_another_machine(run: SavedRun) -> SavedRun:
    identity = {**process.identity(), process.HOST: "elsewhere", process.BOOT: "a/b/c"}
    attempts.begin(run.folder, 0).end("")
    return SavedRun(run.folder, {**run.record, "process": identity})


def test_a_run_of_another_machine_continues_when_its_attempt_is_silent(
    folder: ObjectPath, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(attempts, "STORE_SILENT_S", 0.03)
    monkeypatch.setattr(attempts, "_LOOK_S", 0.01)
    runs.check_not_running("resume", of_another_machine(registered(folder)))
    assert "to see whether an earlier attempt still runs" in capsys.readouterr().out


def test_a_run_of_another_machine_that_still_writes_is_in_use(
    folder: ObjectPath, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = of_another_machine(registered(folder))
    path = attempts.path_of(run.folder, 1)
    assert isinstance(path, ObjectPath)
    monkeypatch.setattr(
        attempts.is_silent, "__defaults__", (lambda _: client.write(path, b'{"number": 1, "step": 9}'),)
    )
    with pytest.raises(ConfigError, match="is still running it, or can't be seen from here"):
        runs.check_not_running("resume", run)


def test_a_run_that_another_process_has_begun_since_it_was_looked_for_is_in_use(
    folder: ObjectPath, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recovery, "recorded_overrides", list)
    monkeypatch.setattr(recovery, "folder_of", lambda _: folder)
    monkeypatch.setattr(attempts, "is_silent", lambda *_: False)
    lasting = {"name": "exp1"}
    there = of_another_machine(
        runs.register(folder, "exp1", tracked=False, overrides=[], name="exp1", lasting=lasting)
    )
    runs.write_record(there.folder, there.record)
    before = attempts.names(there.folder)
    with ExitStack() as locks, pytest.raises(ConfigError, match="on elsewhere is still running it"):
        recovery.begin_attempt(CheckpointConfig(), "exp1", "batch=1", Tracker(), Path("unused"), None, locks)
    assert attempts.names(there.folder) == before


def test_an_attempt_is_begun_once(folder: ObjectPath) -> None:
    journal = attempts.begin(folder, 0)
    with pytest.raises(FileExistsError):
        attempts.Journal(folder, 1, 0, str)
    journal.update(5)
    journal.end("finished")
    assert [(attempt.step, attempt.ended) for attempt in attempts.read(folder)] == [(5, "finished")]

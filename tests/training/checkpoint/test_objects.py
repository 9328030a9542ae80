"""Checkpoints in an object store: what they hold, how they are replaced and removed, and who may write them."""

from __future__ import annotations

import errno
import random
import threading
from contextlib import AbstractContextManager, ExitStack
from dataclasses import replace
from pathlib import Path
from typing import cast

import numpy as np
import pytest

pytest.importorskip("obstore")

from runner.checkpoint import (
    attempts,
    index,
    manifest,
    recovery,
    runs,
    storage,
)
from runner.checkpoint.files import DamagedError
from runner.checkpoint.index import CheckpointIndex
from runner.checkpoint.reading import Checkpoint
from runner.checkpoint.recorder import MetricRecorder
from runner.checkpoint.runs import SavedRun
from runner.checkpoint.saver import CheckpointSaver
from runner.config.schema import CheckpointConfig, RunConfig
from runner.errors import ConfigError
from runner.host.stores import cache, client
from runner.host.stores.client import StoreError
from runner.host.stores.urls import ObjectPath
from runner.tracking import Tracker, process
from tests.training.checkpoint.test_storage import WHOLE, content

# The contents that are saved here do not depend on it.
RECORDER = cast(MetricRecorder, None)


@pytest.fixture
def folder(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ObjectPath:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(cache, "_used", set())
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
    np.testing.assert_equal(stored.history(), local.history())
    assert {**stored.about, manifest.FILES_FOLDER: ""} == {**local.about, manifest.FILES_FOLDER: ""}
    assert storage.steps(folder) == [3]
    assert storage.size(folder, 3) > 0
    assert storage.written_at(folder, 3) > 0


def test_a_save_that_fails_before_its_manifest_leaves_no_files(
    folder: ObjectPath, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(path: ObjectPath) -> None:
        raise StoreError(f"{path}: 503")

    with monkeypatch.context() as context:
        context.setattr(storage, "_files_of", fail)
        with pytest.raises(StoreError):
            storage.write(folder, content(1))
    assert not client.below(folder)


def test_a_store_that_does_not_answer_does_not_show_as_files_that_no_run_wrote(
    folder: ObjectPath, monkeypatch: pytest.MonkeyPatch
) -> None:
    for step in (1, 2):
        storage.write(folder, content(step))
    kept = CheckpointIndex(folder, 2)

    def fail(path: ObjectPath, *_: object) -> None:
        raise StoreError(f"{path}: 503")

    with monkeypatch.context() as context:
        context.setattr(client, "remove", fail)
        (warning,) = kept.remove_old(1)
    path = f"{folder}/step-000000001"
    assert warning == f"could not remove {path}: {path}/checkpoint.json: 503"


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


def _copied(folder: ObjectPath, target: Path) -> Path:
    """Copies a folder of a store to the disk, as `aws s3 sync` does."""
    for name in client.below(folder):
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        (target / name).write_bytes(client.read(folder / name))
    return target


def test_a_local_copy_is_verified_and_removed_like_any_other_checkpoint(folder: ObjectPath, tmp_path: Path) -> None:
    storage.write(folder, content())
    copy = _copied(folder, tmp_path / "copy")
    place = storage.place(copy, 3)
    assert isinstance(place, Path)
    np.testing.assert_array_equal(Checkpoint(place)["d1/kernel"], WHOLE)
    assert storage.size(copy, 3) == storage.size(folder, 3)
    (arrays,) = place.glob(f"*/{manifest.ARRAYS}")
    data = bytearray(arrays.read_bytes())
    data[-1] ^= 1
    arrays.write_bytes(data)
    with pytest.raises(DamagedError, match="SHA-256 mismatch"):
        Checkpoint(place)
    assert storage.remove(copy, 3)
    storage.remove_records(copy, [])
    assert not copy.exists()


def test_files_of_others_stay(folder: ObjectPath) -> None:
    storage.write(folder, content())
    client.write(folder / "step-000000003" / "notes.txt", b"mine")
    assert storage.remove(folder, 3)
    assert set(client.below(folder)) == {"step-000000003/notes.txt"}


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


def test_every_corruption_is_found(folder: ObjectPath, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = storage.write(folder, content())
    assert isinstance(place, ObjectPath)
    whole = {path: client.read(place / path) for path in client.below(place)}
    draw = random.Random(7)
    for case in range(50):
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / str(case)))
        path = draw.choice(sorted(whole))
        data = bytearray(whole[path])
        kind = draw.choice(["flip", "cut", "add", "lose"])
        if kind == "flip":
            data[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
        elif kind == "cut":
            del data[draw.randrange(len(data)) :]
        elif kind == "add":
            data += b"\0"
        if kind == "lose":
            client.remove(place / path)
        else:
            client.write(place / path, bytes(data))
        with pytest.raises(DamagedError):
            Checkpoint(place)
        client.write(place / path, whole[path])
    assert Checkpoint(place)


def test_a_store_that_does_not_answer_is_no_damage(folder: ObjectPath, monkeypatch: pytest.MonkeyPatch) -> None:
    place = storage.write(folder, content())

    def fail(path: ObjectPath, *_: object) -> bytes:
        raise StoreError(f"{path}: 503")

    monkeypatch.setattr(client, "read", fail)
    with pytest.raises(StoreError):
        Checkpoint(place)
    with pytest.raises(StoreError):
        storage.is_checkpoint(place)


def test_training_waits_for_a_large_state_only_until_it_is_on_the_local_disk(
    folder: ObjectPath, monkeypatch: pytest.MonkeyPatch
) -> None:
    was_taken: list[bool] = []
    large = replace(content(), shards=dict(content().shards), passing=True)
    upload = client.upload

    def noted(file: Path, path: ObjectPath) -> None:
        was_taken.append(large.taken.is_set() and not large.shards)
        upload(file, path)

    monkeypatch.setattr(client, "upload", noted)
    written = Checkpoint(storage.write(folder, large))
    assert was_taken == [True]
    np.testing.assert_array_equal(written["d1/kernel"], WHOLE)
    assert not list(cache.folder().glob("spool-*"))


def test_a_step_waits_for_no_upload(folder: ObjectPath, monkeypatch: pytest.MonkeyPatch) -> None:
    """The store answers only after the step has gone on; by then nothing is saved, and afterwards everything is."""
    may_answer = threading.Event()
    writing = client.writing

    def held_up(path: ObjectPath) -> AbstractContextManager[client.Writer]:
        assert may_answer.wait(30)
        return writing(path)

    monkeypatch.setattr(client, "writing", held_up)
    saver = CheckpointSaver(CheckpointConfig(), folder, lambda step, _: content(step), pytest.fail)
    saver.save(1, RECORDER)
    saver.save(2, RECORDER)
    assert storage.steps(folder) == []
    may_answer.set()
    saver.close()
    assert storage.steps(folder) == [1, 2]


def test_the_index_keeps_the_newest_and_the_best(folder: ObjectPath) -> None:
    kept = CheckpointIndex(folder, 0)
    kept.write(content(1), {"metric": "eval/loss", "value": 0.1, "step": 1})
    for step in (2, 3, 4):
        kept.write(content(step), None)
        assert kept.remove_old(1) == []
    assert storage.steps(folder) == [1, 4]
    assert index.read_best(folder) == {"metric": "eval/loss", "value": 0.1, "step": 1}
    kept.give_up(1)
    assert index.read_best(folder) is None


def test_a_full_local_disk_removes_no_checkpoint_in_the_store(
    folder: ObjectPath, monkeypatch: pytest.MonkeyPatch
) -> None:
    saver = CheckpointSaver(
        CheckpointConfig(every_steps=1, keep=3, best=None), folder, lambda step, _: content(step), lambda _: None
    )
    for step in (1, 2):
        saver.save(step, RECORDER)
    saver._wait()

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as context:
        context.setattr(storage, "write", full)
        unsaved = saver.save_last(3, RECORDER)
    saver.close()
    assert unsaved is not None
    assert f"free space in {cache.folder()}, where files wait for their upload, then continue from step 2" in unsaved
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
    config = RunConfig(resume="auto", name="exp1")
    with ExitStack() as locks, pytest.raises(ConfigError, match="on elsewhere is still running it"):
        recovery.begin_attempt(config, Tracker(), Path("unused"), None, locks)
    assert attempts.names(there.folder) == before


def test_a_process_leaves_when_another_one_has_begun_the_next_attempt(
    folder: ObjectPath, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attempts, "BEAT_S", 0.01)
    left: list[str] = []
    journal = attempts.AttemptJournal(folder, 1, 0, left.append)
    client.write(folder / "attempt-2.json", b"{}")
    journal._thread.join(5)
    assert len(left) == 1
    assert "has begun attempt-2.json of this run" in left[0]


def test_an_attempt_is_begun_once(folder: ObjectPath) -> None:
    journal = attempts.begin(folder, 0)
    with pytest.raises(FileExistsError):
        attempts.AttemptJournal(folder, 1, 0, str)
    journal.update(step=5)
    journal.end("finished")
    assert [(attempt.step, attempt.ended) for attempt in attempts.read(folder)] == [(5, "finished")]

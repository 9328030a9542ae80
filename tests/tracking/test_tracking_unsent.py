"""What could not be stored is kept where there is room, whole, and found again; or it is said that it is lost."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from mlflow import MlflowClient
from mlflow.entities import Metric
from mlflow.exceptions import MlflowException
from rich.console import Console
from sqlalchemy.exc import DatabaseError, IntegrityError, OperationalError

from runner.errors import Interrupted, TrackingError
from runner.run.train import recorded
from runner.tracking import Status, Tracker, replaying, unsent, unsent_folders
from runner.tracking.records import Artifact, Point, Record
from runner.tracking.send import MlflowWriter, is_retryable
from runner.tracking.store import open_store
from tests.tracking.conftest import Opener

POINTS: list[Record] = [Point("loss", float(step), 7, step) for step in range(5)]
Rows = Callable[[str], list[tuple[int, float]]]


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's state folder, and beside it the temporary one."""
    state, temporary = tmp_path / "state", tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setenv("XDG_STATE_HOME", str(state))
    monkeypatch.setattr("tempfile.tempdir", str(temporary))
    return state / "runner" / "unsent"


def block(folder: Path) -> None:
    """Makes a folder impossible, for root too."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    folder.write_text("a file, no folder")


def away(*_: object, **__: object) -> None:
    raise MlflowException("(sqlite3.OperationalError) database or disk is full")


def test_what_outputs_can_not_take_lies_in_the_users_state_folder_and_is_stored_by_the_next_run(
    opener: Opener,
    uri: str,
    rows: Rows,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    elsewhere: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    block(tmp_path / "outputs")
    tracker = opener(uri, finish_timeout_s=0.1)
    with monkeypatch.context() as full:
        full.setattr(MlflowClient, "log_batch", away)
        for step in range(2000):
            tracker.log_metrics(step, {"loss": step / 8})
        assert tracker.finish("FINISHED")
    path = elsewhere / f"{tracker.run_id}.jsonl"
    assert path.stat().st_mode & 0o022 == 0
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 2
    assert "saved 2001 records in" in said[1]
    assert str(path) in said[1]
    opener(uri)
    assert rows("loss") == [(step, step / 8) for step in range(2000)]
    assert MlflowClient(uri).get_run(tracker.run_id).info.status == "FINISHED"
    assert not path.exists()


def test_what_no_place_takes_is_said_to_be_lost_and_finish_returns_that(
    opener: Opener,
    uri: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    elsewhere: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for place in (tmp_path / "outputs", elsewhere.parent, unsent_folders.folders(tmp_path)[2].parent):
        block(place)
    tracker = opener(uri, finish_timeout_s=0.1)
    monkeypatch.setattr(MlflowClient, "log_batch", away)
    tracker.log_metrics(1, {"loss": 1.0})
    assert not tracker.finish("FINISHED")
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 2
    assert "2 records are lost: the store is unavailable, and no folder can be written (" in said[1]
    assert said[1].count("Not a directory") + said[1].count("File exists") + said[1].count("another user") == 3
    assert any("are lost" in line for line in tracker.describe())


def test_a_run_whose_files_are_lost_is_not_finished(
    opener: Opener, uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, elsewhere: Path
) -> None:
    for place in (tmp_path / "outputs", elsewhere.parent, unsent_folders.folders(tmp_path)[2].parent):
        block(place)
    tracker, page = opener(uri, finish_timeout_s=0.1), tmp_path / "config.yaml"
    page.write_text("a: 1")

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(MlflowClient, "log_artifact", full)
    tracker.log_artifact(page)
    assert not tracker.finish("FINISHED")
    assert MlflowClient(uri).get_run(tracker.run_id).info.status == "FAILED"


def test_a_file_that_the_disk_does_not_take_whole_is_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.jsonl"
    unsent.write(path, "sqlite:////x.db", "a", POINTS)
    before = path.read_bytes()

    def full(handle: int) -> None:
        del handle
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        unsent.write(path, "sqlite:////x.db", "a", POINTS)
    assert path.read_bytes() == before
    with pytest.raises(OSError, match="No space"):
        unsent.write(tmp_path / "b.jsonl", "sqlite:////x.db", "b", POINTS)
    assert not (tmp_path / "b.jsonl").exists()


def test_a_line_that_its_writer_did_not_end_costs_no_other(
    opener: Opener, uri: str, rows: Rows, tmp_path: Path
) -> None:
    run_id = opener(uri).run_id
    assert run_id is not None
    path = unsent_folders.project_folder(tmp_path) / f"{run_id}.jsonl"
    unsent.write(path, uri, run_id, POINTS)
    with path.open("a") as file:
        file.write('{"kind": "point", "ke')
    assert unsent.read(path).records == POINTS
    more: list[Record] = [Point("loss", 9.0, 7, 9)]
    unsent.write(path, uri, run_id, more)
    assert unsent.read(path).records == [*POINTS, *more]
    opener(uri)
    assert [step for step, _ in rows("loss")] == [0, 1, 2, 3, 4, 9]


def test_a_folder_that_others_can_write_is_neither_read_nor_written(tmp_path: Path, elsewhere: Path) -> None:
    elsewhere.mkdir(parents=True)
    elsewhere.chmod(0o777)
    (elsewhere / "planted.jsonl").write_text(json.dumps({"run_id": "r", "uri": "u", "store": "s"}))
    assert unsent_folders.files(tmp_path) == []
    block(tmp_path / "outputs")
    path = unsent.write_somewhere(tmp_path, "a.jsonl", "sqlite:////x.db", "a", POINTS)
    assert tmp_path / "temporary" in path.parents


def test_a_file_that_others_can_write_is_not_stored_by_name_either(opener: Opener, uri: str, tmp_path: Path) -> None:
    run_id = opener(uri).run_id
    assert run_id is not None
    path = unsent_folders.project_folder(tmp_path) / f"{run_id}.jsonl"
    unsent.write(path, uri, run_id, POINTS)
    path.chmod(0o666)
    with pytest.raises(ValueError, match="another user owns it, or can write to it"):
        replaying.replay(path, uri)
    assert path.exists()


def test_the_files_of_one_run_are_stored_in_the_order_of_their_writing(tmp_path: Path, elsewhere: Path) -> None:
    for index, place in enumerate((elsewhere, unsent_folders.project_folder(tmp_path))):
        unsent_folders.make(place, tmp_path)
        (place / "a.jsonl").touch()
        os.utime(place / "a.jsonl", (index, index))
    assert [path.parent for path in unsent_folders.files(tmp_path)] == [
        elsewhere,
        unsent_folders.project_folder(tmp_path),
    ]


def _by_database(error: Exception) -> MlflowException:
    codes = {OperationalError: "TEMPORARILY_UNAVAILABLE"}
    from mlflow.protos.databricks_pb2 import ErrorCode

    return MlflowException(error, error_code=ErrorCode.Value(codes.get(type(error), "BAD_REQUEST")))  # type: ignore[arg-type]


class _Sqlite(Exception):  # noqa: N818 - names of the driver's own errors are in the text
    pass


@pytest.mark.parametrize(
    ("error", "passes"),
    [
        (OSError(28, "No space left on device"), True),
        (OSError(122, "Disk quota exceeded"), True),
        (OSError(30, "Read-only file system"), True),
        (OSError(5, "Input/output error"), True),
        (PermissionError(13, "Permission denied"), True),
        (ConnectionResetError(), True),
        (TimeoutError(), True),
        (_by_database(OperationalError("INSERT", {}, _Sqlite("database or disk is full"))), True),
        (_by_database(OperationalError("INSERT", {}, _Sqlite("attempt to write a readonly database"))), True),
        (_by_database(DatabaseError("INSERT", {}, _Sqlite("database disk image is malformed"))), True),
        (_by_database(IntegrityError("INSERT", {}, _Sqlite("(sqlite3.IntegrityError) UNIQUE"))), False),
        (ValueError("no such file"), False),
    ],
    ids=str,
)
def test_a_disk_may_mend_and_a_record_may_not(error: Exception, passes: bool) -> None:
    assert is_retryable(error) is passes


@pytest.mark.parametrize(("code", "passes"), [("INVALID_PARAMETER_VALUE", False), ("RESOURCE_DOES_NOT_EXIST", False)])
def test_what_mlflow_refuses_is_refused_for_good_and_a_proxys_page_is_not(code: str, passes: bool) -> None:
    from mlflow.protos.databricks_pb2 import ErrorCode

    value = ErrorCode.Value(code)
    assert is_retryable(MlflowException("No run", error_code=value)) is passes
    page = "API request to endpoint /x failed with error code 404 != 200. Response body: '<html>'"
    assert is_retryable(MlflowException(page, error_code=value))


def test_a_file_that_is_not_there_is_a_line_and_no_record(
    opener: Opener, uri: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tracker = opener(uri)
    tracker.log_artifact(tmp_path / "curves.png")
    assert tracker.finish("FINISHED")
    assert capsys.readouterr().err.splitlines() == [
        f"tracking: could not record {tmp_path / 'curves.png'}: there is no such file"
    ]
    assert unsent_folders.files(tmp_path) == []


class Losing(Tracker):
    """Can't keep what it is given."""

    def finish(self, status: Status) -> bool:
        del status
        return False

    def describe(self) -> list[str]:
        return ["3 records are lost"]


def test_a_run_that_ended_well_fails_where_something_of_it_is_lost(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(TrackingError, match="run None is not recorded completely"), recorded(Losing(), Console()):
        pass
    assert "3 records are lost" in capsys.readouterr().out


def test_a_signal_stays_one_where_something_is_lost() -> None:
    with pytest.raises(Interrupted), recorded(Losing(), Console()):
        raise Interrupted(15)


def test_a_metrics_history_is_read_once_however_many_points_wait(
    uri: str, rows: Rows, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store(uri, "replayed")
    run = store.client.create_run(store.experiment_id).info.run_id
    points = [Point(key, step / 8, 7, step) for step in range(2500) for key in ("loss", "accuracy")]
    stored = [point for point in points if point.step % 3 == 0][:900]
    store.client.log_batch(run, [Metric(one.key, one.value, one.timestamp, one.step) for one in stored])
    path = tmp_path / f"{run}.jsonl"
    unsent.write(path, uri, run, [*points, points[-1]])
    asked: list[str] = []
    sent: list[int] = []
    history, batch = MlflowClient.get_metric_history, MlflowClient.log_batch

    def noted_history(client: MlflowClient, run_id: str, key: str) -> list[Metric]:
        asked.append(key)
        return list(history(client, run_id, key))

    def noted_batch(client: MlflowClient, run_id: str, metrics: list[Metric], synchronous: bool) -> None:
        sent.append(len(metrics))
        batch(client, run_id, metrics, synchronous=synchronous)

    monkeypatch.setattr(MlflowClient, "get_metric_history", noted_history)
    monkeypatch.setattr(MlflowClient, "log_batch", noted_batch)
    assert replaying.replay(path, uri) == 5001
    assert asked == ["loss", "accuracy"]
    assert sum(sent) == 5000 - 900
    assert rows("loss") == rows("accuracy") == [(step, step / 8) for step in range(2500)]


def test_what_a_failed_attempt_of_a_replay_stored_is_not_sent_again(
    uri: str, rows: Rows, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store(uri, "replayed")
    run = store.client.create_run(store.experiment_id).info.run_id
    path = tmp_path / f"{run}.jsonl"
    unsent.write(path, uri, run, [Point("loss", step / 8, 7, step) for step in range(2500)])
    sent: list[int] = []
    batch = MlflowClient.log_batch

    def answers_too_late(client: MlflowClient, run_id: str, metrics: list[Metric], synchronous: bool) -> None:
        sent.append(len(metrics))
        batch(client, run_id, metrics, synchronous=synchronous)
        if len(sent) == 2:
            raise ConnectionError("the answer was lost")

    monkeypatch.setattr(MlflowClient, "log_batch", answers_too_late)
    monkeypatch.setattr(replaying, "_RETRY_DELAY_S", 0.0)
    assert replaying.replay(path, uri) == 2500
    assert sent == [1000, 1000, 500]
    assert rows("loss") == [(step, step / 8) for step in range(2500)]


def test_a_link_is_not_followed_and_a_file_of_another_run_is_not_appended_to(tmp_path: Path) -> None:
    folder = tmp_path / "unsent"
    unsent.write(folder / "a.jsonl", "sqlite:////x.db", "a", POINTS)
    (folder / "b.jsonl").symlink_to(folder / "a.jsonl")
    with pytest.raises(unsent.NotOursError):
        unsent.write(folder / "b.jsonl", "sqlite:////x.db", "b", POINTS)
    with pytest.raises(ValueError, match="of another run"):
        unsent.write(folder / "a.jsonl", "sqlite:////x.db", "b", POINTS)
    assert unsent.read(folder / "a.jsonl").records == POINTS


def test_a_file_that_became_a_link_is_not_uploaded_by_a_later_start(uri: str, tmp_path: Path) -> None:
    client = MlflowClient(uri)
    run = client.create_run(client.create_experiment("links")).info.run_id
    secret, made = tmp_path / "secret", tmp_path / "curves.png"
    secret.write_text("a password")
    made.write_text("a picture")
    writer = MlflowWriter(client, run)
    writer.write([Artifact(str(made), "")], is_retry=True)
    made.unlink()
    made.symlink_to(secret)
    with pytest.raises(ValueError, match="is a link, or not only yours to write"):
        writer.write([Artifact(str(made), "")], is_retry=True)
    assert [item.path for item in client.list_artifacts(run)] == ["curves.png"]

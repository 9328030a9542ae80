"""What could not be stored is in the run's file and is sent later, each point once; or it is said that it is lost."""

from collections.abc import Callable
from pathlib import Path

import pytest
from mlflow import MlflowClient
from mlflow.entities import Metric
from mlflow.exceptions import MlflowException
from sqlalchemy.exc import DatabaseError, IntegrityError, OperationalError

from runner.cluster import process
from runner.errors import TrackingError
from runner.host.lock import HeldError
from runner.tracking import Tracker, run_file, send
from runner.tracking.base import FOLDER
from runner.tracking.records import Artifact, Ending, Point, Record, Tag
from runner.tracking.run_file import RunFile
from runner.tracking.send import is_retryable
from runner.tracking.start import mark_dead_runs
from runner.tracking.store import Store, open_store
from tests.tracking.conftest import Opener, Unsent

POINTS: list[Record] = [Point("loss", float(step), 7, step) for step in range(5)]
Rows = Callable[[str], list[tuple[int, float]]]


def away(*_: object, **__: object) -> None:
    raise MlflowException("(sqlite3.OperationalError) database or disk is full")


def block(tracker: Tracker, tmp_path: Path) -> None:
    """Makes a run's file impossible, for root too."""
    assert tracker.run_id is not None
    run_file.path_of(tmp_path / "run", tracker.run_id).mkdir()


def left_by_a_dead_process(store: Store, folder: Path, records: list[Record]) -> Path:
    """Makes a run whose process died, with records in its file that the store may lack."""
    run = store.client.create_run(store.experiment_id).info.run_id
    file = RunFile(folder, run, store.uri)
    file.append(records)
    file.close(sent=False)
    for key in (process.PID, process.BOOT):
        store.client.set_tag(run, key, file._head[key])
    store.client.set_tag(run, FOLDER, str(folder))
    return file.path


def run_of(path: Path) -> str:
    return path.stem.removeprefix("tracking-")


@pytest.fixture
def store(uri: str) -> Store:
    return open_store(uri, "tests")


def test_what_the_store_does_not_take_is_in_the_file_and_the_next_resume_stores_it(
    opener: Opener, uri: str, rows: Rows, unsent: Unsent, monkeypatch: pytest.MonkeyPatch
) -> None:
    tracker = opener(uri, finish_timeout_s=0.1)
    with monkeypatch.context() as full:
        full.setattr(MlflowClient, "log_batch", away)
        for step in range(2000):
            tracker.log_metrics(step, {"loss": step / 8})
        assert tracker.finish("FINISHED")
    assert unsent(tracker) == [*["point"] * 2000, "ending"]
    assert any("2,000 records are not in the store" in line for line in tracker.describe())
    again = opener(uri, resume_run_id=tracker.run_id)
    assert rows("loss") == [(step, step / 8) for step in range(2000)]
    assert MlflowClient(uri).get_run(tracker.run_id).info.status == "RUNNING"
    again.log_metrics(2000, {"loss": 250.0})
    assert again.finish("FINISHED")
    assert unsent(tracker) is None
    assert len(rows("loss")) == 2001


def test_what_no_place_takes_is_said_to_be_lost_and_finish_returns_that(
    opener: Opener, uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tracker = opener(uri, finish_timeout_s=0.1)
    block(tracker, tmp_path)
    monkeypatch.setattr(MlflowClient, "log_batch", away)
    tracker.log_metrics(1, {"loss": 1.0})
    assert not tracker.finish("FINISHED")
    assert "1 records are not in the store and are lost, because" in capsys.readouterr().err
    assert any("are lost" in line for line in tracker.describe())


def test_a_run_whose_files_are_lost_is_not_finished(
    opener: Opener, uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tracker, page = opener(uri, finish_timeout_s=0.1), tmp_path / "config.yaml"
    block(tracker, tmp_path)
    page.write_text("a: 1")

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(MlflowClient, "log_artifact", full)
    tracker.log_artifact(page)
    assert not tracker.finish("FINISHED")
    assert MlflowClient(uri).get_run(tracker.run_id).info.status == "FAILED"


def test_a_line_that_its_writer_did_not_end_costs_no_other(tmp_path: Path) -> None:
    first = RunFile(tmp_path, "a", "sqlite:////x.db")
    first.append(POINTS)
    with pytest.raises(HeldError):
        run_file._locked(first.path)
    first.close(sent=False)
    with first.path.open("a") as file:
        file.write('{"kind": "point", "ke')
    more: list[Record] = [Point("loss", 9.0, 7, 9)]
    second = RunFile(tmp_path, "a", "sqlite:////x.db")
    second.append(more)
    assert run_file.parsed(second.path)[1] == [*POINTS, *more]
    second.close(sent=True)
    assert run_file.parsed(second.path)[1] == []
    assert not run_file.is_unsent(second.path)


@pytest.mark.parametrize("mode", [0o666, 0o660])
def test_a_file_that_others_can_write_is_not_sent(store: Store, tmp_path: Path, mode: int) -> None:
    path = left_by_a_dead_process(store, tmp_path, POINTS)
    path.chmod(mode)
    with pytest.raises(PermissionError, match="others can write to it"):
        send.sync(store, path, print)


def test_a_copied_folder_uploads_no_private_file(store: Store, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    (tmp_path / "secret").write_text("a password")
    (folder / "link").symlink_to(tmp_path / "secret")
    (folder / "curves.png").write_text("a picture")
    names = ("secret", "run/link", "run/../secret", "run/curves.png")
    path = left_by_a_dead_process(store, folder, [Artifact(f"{tmp_path}/{name}", "") for name in names])
    with pytest.raises(TrackingError, match=r"3 records of .* were rejected: .*secret is not in"):
        send.sync(store, path, print)
    assert [item.path for item in store.client.list_artifacts(run_of(path))] == ["curves.png"]


def test_a_dead_runs_own_status_counts(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = left_by_a_dead_process(store, tmp_path, [Tag("note", "late"), Ending("FINISHED", 9)])
    monkeypatch.setattr(process, "is_gone", lambda _tags: True)
    mark_dead_runs(store, lambda _line: None)
    run = store.client.get_run(run_of(path))
    assert (run.info.status, run.data.tags["note"]) == ("FINISHED", "late")


def test_a_run_that_another_process_has_continued_gets_only_points_of_other_steps(
    store: Store, rows: Rows, tmp_path: Path
) -> None:
    path = left_by_a_dead_process(store, tmp_path, [*POINTS, Tag("note", "late"), Ending("FAILED", 9)])
    run = run_of(path)
    store.client.set_tag(run, process.PID, "another")
    store.client.log_batch(run, [Metric("loss", 0.5, 99, 4)])
    assert send.sync(store, path, print) == 4
    assert rows("loss") == [(0, 0.0), (1, 1.0), (2, 2.0), (3, 3.0), (4, 0.5)]
    after = store.client.get_run(run)
    assert (after.info.status, "note" in after.data.tags) == ("RUNNING", False)


def test_a_file_of_another_store_is_left_alone(store: Store, tmp_path: Path) -> None:
    file = RunFile(tmp_path, "a", "http://another")
    file.append(POINTS)
    file.close(sent=False)
    assert send.sync(store, file.path, print) is None
    assert run_file.is_unsent(file.path)


def test_what_a_failed_attempt_stored_is_not_sent_again(
    store: Store, rows: Rows, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = left_by_a_dead_process(store, tmp_path, [Point("loss", step / 8, 7, step) for step in range(2500)])
    sent: list[int] = []
    batch = MlflowClient.log_batch

    def answers_too_late(client: MlflowClient, run_id: str, metrics: list[Metric], synchronous: bool) -> None:
        sent.append(len(metrics))
        batch(client, run_id, metrics, synchronous=synchronous)
        if len(sent) == 2:
            raise ConnectionError("the answer was lost")

    monkeypatch.setattr(MlflowClient, "log_batch", answers_too_late)
    with pytest.raises(TrackingError, match="try again later"):
        send.sync(store, path, print)
    assert send.sync(store, path, print) == 2500
    assert rows("loss") == [(step, step / 8) for step in range(2500)]


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
        (PermissionError(13, "Permission denied"), True),
        (ConnectionResetError(), True),
        (_by_database(OperationalError("INSERT", {}, _Sqlite("database or disk is full"))), True),
        (_by_database(DatabaseError("INSERT", {}, _Sqlite("database disk image is malformed"))), True),
        (_by_database(IntegrityError("INSERT", {}, _Sqlite("(sqlite3.IntegrityError) UNIQUE"))), False),
        (ValueError("no such file"), False),
    ],
    ids=str,
)
def test_a_disk_may_mend_and_a_record_may_not(error: Exception, passes: bool) -> None:
    assert is_retryable(error) is passes


@pytest.mark.parametrize("code", ["INVALID_PARAMETER_VALUE", "RESOURCE_DOES_NOT_EXIST"])
def test_what_mlflow_refuses_is_refused_for_good_and_a_proxys_page_is_not(code: str) -> None:
    from mlflow.protos.databricks_pb2 import ErrorCode

    value = ErrorCode.Value(code)
    assert not is_retryable(MlflowException("No run", error_code=value))
    page = "API request to endpoint /x failed with error code 404 != 200. Response body: '<html>'"
    assert is_retryable(MlflowException(page, error_code=value))

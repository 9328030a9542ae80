"""Recorded runs: which are listed and meant, what is removed, and what never is."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from mlflow import MlflowClient

from runner.checkpoint import runs, storage
from runner.checkpoint.runs import SavedRun
from runner.cli.commands import run
from runner.cli.runs.records import find
from runner.cluster import process
from runner.tracking.store import Store, open_store
from tests.stores import store_in
from tests.training.checkpoint.test_storage import content, register

DAY = 86400.0


def saved(folder: Path, name: str, *, days: float = 0, tracked: bool = False, **record: object) -> Path:
    """A run that ended so long ago, with checkpoints of steps 5 and 10."""
    made = register(folder, name, tracked=tracked, overrides=[])
    began = time.time() - days * DAY
    for step in (5, 10):
        storage.write(made.folder, content(step, name))
    lasting = {**made.record, "started": began, "seen": began, "ended": True, "finished": True, **record}
    runs.write_record(made.folder, lasting)
    return made.folder


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """An empty folder of checkpoints."""
    return tmp_path / "checkpoints"


def command(place: Path, *words: str, uri: str = "none") -> int:
    return run("runner.cli.runs", [*words, f"folder={place}", f"uri={uri}"])


def there(place: Path) -> set[str]:
    return {path.name for path in place.iterdir() if storage.steps(path)}


def test_a_dry_run_removes_nothing_and_says_what_it_would(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    saved(place, "old", days=40), saved(place, "new")
    assert command(place, "clean", "older=30d") == 0
    assert there(place) == {"old", "new"}
    out = capsys.readouterr().out
    assert "would remove checkpoints of 1 run," in out
    assert "nothing removed; the runs in the store would stay; to remove: add yes=true" in out


@pytest.mark.parametrize(
    ("words", "left"),
    [
        (["older=30d"], {"new", "failed"}),
        (["keep=1"], {"new"}),
        (["keep=2", "older=30d"], {"new", "failed"}),
        (["status=unfinished"], {"old", "new"}),
        (["run=old", "run=failed"], {"new"}),
        (["run=latest"], {"old", "failed"}),
        (["older=30d", "status=unfinished"], {"old", "new", "failed"}),
    ],
)
def test_runs_go_by_age_count_status_and_name(place: Path, words: list[str], left: set[str]) -> None:
    saved(place, "old", days=40), saved(place, "failed", days=2, finished=False), saved(place, "new")
    assert command(place, "clean", *words, "yes=true") == 0
    assert there(place) == left
    assert {path.name for path in place.iterdir()} == left, "nothing of ours is left behind"


def test_a_run_whose_process_is_there_stays(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    saved(place, "runs", days=40, ended=False, finished=False)
    elsewhere = {**process.identity(), process.HOST: "another"}
    saved(place, "elsewhere", days=40, ended=False, finished=False, process=elsewhere)
    assert command(place, "clean", "keep=0", "yes=true") == 0
    assert there(place) == {"runs", "elsewhere"}
    assert capsys.readouterr().out.count("is running") == 2


def test_a_run_that_another_process_holds_stays(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = saved(place, "held", days=40)
    with runs.locked("resume", runs.find("resume", "held", place)[0]):
        assert command(place, "clean", "keep=0", "yes=true") == 1
    assert there(place) == {folder.name}
    assert "error: could not clean run held: run=held: the run is in use by another process" in capsys.readouterr().err


def test_what_is_not_ours_stays(place: Path) -> None:
    folder = saved(place, "mixed")
    (folder / "step-000000005" / "notes.txt").write_text("mine")
    (folder / "notes.txt").write_text("mine")
    (place / "unknown").mkdir()
    (place / "unknown" / "step-000000005").mkdir()
    assert command(place, "clean", "keep=0", "yes=true") == 0
    assert (folder / "step-000000005" / "notes.txt").exists()
    assert (folder / "notes.txt").exists()
    assert (place / "unknown" / "step-000000005").exists()
    assert not (folder / "step-000000010").exists()
    assert sorted(path.name for path in folder.rglob("*")) == ["notes.txt", "notes.txt", "step-000000005"]


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return open_store(store_in(tmp_path), "runs")


def tracked(store: Store, place: Path, **record: object) -> str:
    run = store.client.create_run(store.experiment_id, run_name="mine")
    store.client.set_terminated(run.info.run_id, "FAILED")
    saved(place, run.info.run_id, tracked=True, **record)
    return str(run.info.run_id)


def test_a_run_that_is_resumed_meanwhile_stays(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    saved(place, "left"), saved(place, "resumed")

    @contextmanager
    def locked(_: str, run: SavedRun) -> Iterator[None]:
        if run.id == "resumed":
            runs.write_record(run.folder, {**run.record, "seen": 1.0})
        yield

    monkeypatch.setattr(runs, "locked", locked)
    assert command(place, "clean", "keep=0", "yes=true") == 1
    assert there(place) == {"resumed"}
    assert "run=resumed: another process has changed it meanwhile; try again" in capsys.readouterr().err


def test_runs_are_looked_at_all_at_once(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    saved(place, "one"), saved(place, "two")
    both = threading.Barrier(2, timeout=10)

    def ended(_: str, run: SavedRun) -> SavedRun:
        both.wait()  # a look at another machine's run takes half a minute
        return run

    monkeypatch.setattr(runs, "ended", ended)
    assert command(place, "clean", "keep=0", "yes=true") == 0
    assert there(place) == set()


def test_the_run_in_the_store_stays(place: Path, store: Store) -> None:
    gone = tracked(store, place)
    assert command(place, "clean", "status=failed", "yes=true", uri=store.uri) == 0
    assert there(place) == set()
    run = store.client.get_run(gone)
    assert run.info.lifecycle_stage == "active"


def test_the_list_shows_where_what_lies(place: Path, store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    run = tracked(store, place)
    assert command(place, "status=failed", uri=store.uri) == 0
    out = capsys.readouterr().out
    assert run[:8] in out
    assert "5, 10" in out
    assert command(place, "status=running", uri=store.uri) == 1


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        (["clean"], "clean needs a filter: older=30d, keep=5"),
        (["clean", "older=30"], "older=30: must be a number above 0 with a unit, s, m, h or d; set older=30d"),
        (["clean", "status=dead"], "status[0]=dead: must be one of finished, failed"),
        (["clean", "status=failed", "status=killed"], "status=killed: is given twice; write it once"),
        (["clean", "keep=-1"], "keep=-1: must be at least 0; set keep=5"),
        (["clean", "keep=2", "yes=maybe"], "yes=maybe: must be true or false"),
        (["clean", "keep=2", "yes=1"], "yes=1: must be true or false; set yes=true"),
        (["cleen", "keep=2"], "cleen: write one of list, compare, clean, sync, then key=value; did you mean clean?"),
        (["clean", "kep=2"], "kep=2: write one of list"),
        (["--folder", "x"], "--folder: write one of list, compare, clean, sync, then key=value; did you mean folder?"),
        (["clean", "run=zz"], "run=zz: no run has this id or name"),
    ],
)
def test_what_cannot_be_meant_is_one_line(
    place: Path, words: list[str], shown: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command(place, *words) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"error: {shown}")
    assert error.count("\n") == 1


def test_all_pages_of_a_store_are_read_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("runner.tracking.store._PAGE_SIZE", 2)
    client = MlflowClient(store_in(tmp_path))
    experiment = client.create_experiment("mine")
    made = [client.create_run(experiment, start_time=1000 + number).info.run_id for number in range(5)]
    listed = find(open_store(store_in(tmp_path), "mine"), tmp_path)
    assert [record.run_id for record in reversed(listed)] == made
    assert run("runner.cli.runs", [f"folder={tmp_path}", f"uri={store_in(tmp_path)}"]) == 0

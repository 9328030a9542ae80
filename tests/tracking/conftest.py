"""An empty store a test, copied from one that is made once; no test writes outside its own folder."""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from runner.config.schema import TrackingConfig
from runner.tracking import RunSpec, Tracker, open_tracker, run_file
from runner.tracking.location import sqlite_path
from tests.stores import store_in

Opener = Callable[..., Tracker]
Unsent = Callable[[Tracker], list[str] | None]


@pytest.fixture(autouse=True)
def _no_outer_store(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)


@pytest.fixture
def uri(tmp_path: Path) -> str:
    return store_in(tmp_path)


@pytest.fixture
def opener(tmp_path: Path) -> Iterator[Opener]:
    opened: list[Tracker] = []
    folder = tmp_path / "run"
    folder.mkdir()

    def open_one(
        uri: str,
        *,
        params: Mapping[str, object] | None = None,
        config: Mapping[str, object] | None = None,
        run_name: str = "a run",
        parent_run_id: str | None = None,
        description: str = "",
        finish_timeout_s: float = 30.0,
        resume_run_id: str | None = None,
        experiment: str = "tests",
    ) -> Tracker:
        tracker = open_tracker(
            TrackingConfig(uri=uri, experiment=experiment),
            RunSpec(run_name, params or {}, {"purpose": "test"}, parent_run_id, config or {}, description),
            folder,
            resume_run_id=resume_run_id,
            root=tmp_path,
            finish_timeout_s=finish_timeout_s,
        )
        opened.append(tracker)
        return tracker

    yield open_one
    for tracker in opened:
        tracker.finish("FINISHED")


@pytest.fixture
def unsent(tmp_path: Path) -> Unsent:
    """What a run's file has that the store may lack, by kind; None: the store has all of it."""

    def read(tracker: Tracker) -> list[str] | None:
        assert tracker.run_id is not None
        path = run_file.path_of(tmp_path / "run", tracker.run_id)
        if not run_file.is_unsent(path):
            return None
        return [type(record).__name__.lower() for record in run_file.parsed(path)[1]]

    return read


@pytest.fixture
def rows(uri: str) -> Callable[[str], list[tuple[int, float]]]:
    """Every stored row of a metric as (step, value), in order, straight from the database."""
    import sqlite3

    path = sqlite_path(uri)
    assert path is not None

    def read(key: str) -> list[tuple[int, float]]:
        with sqlite3.connect(path) as connection:
            return connection.execute("SELECT step, value FROM metrics WHERE key = ? ORDER BY step", (key,)).fetchall()

    return read

"""What is recorded and read in numbers: runs, points, images, rows of a table."""

from __future__ import annotations

import os
import sqlite3
import tempfile
import tracemalloc
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest import mock

import numpy as np
import pyarrow as pa
import pyarrow.csv
from mlflow import MlflowClient
from mlflow.entities import Metric, Param, RunTag

from runner.compare.lines import make_lines
from runner.compare.records import load
from runner.config.schema_data import DatasetConfig
from runner.data import tables
from runner.data.sources import arrays, file_records, image_folder
from runner.host import folders
from runner.runs.listing import find, readable
from runner.tracking import replaying, unsent
from runner.tracking.hidden import PARAMS, packed, tag_key
from runner.tracking.records import Point
from runner.tracking.store import Store, open_store
from tests.campaign.growth_base import Dimension, calls, cpu_seconds
from tests.data.pictures import encoded, picture
from tests.stores import store_in

_SHOWN = 30  # rows of a list
_POOLS: list[pa.MemoryPool] = []  # kept: what is freed later, by a thread of Arrow too, is freed into its own pool
_METRICS = ("eval/loss", "eval/accuracy", "train/loss", "throughput/step_ms")


@contextmanager
def _scratch() -> Iterator[Path]:
    """An empty folder, and in it the user's cache."""
    with (
        tempfile.TemporaryDirectory(prefix="growth-") as folder,
        mock.patch.dict(os.environ, {"XDG_CACHE_HOME": str(Path(folder, "cache"))}),
    ):
        yield Path(folder)


def _folders_of_runs(count: int) -> float:
    """Calls of a list of runs that only their folders tell of."""
    with _scratch() as scratch:
        outputs = scratch / "outputs"
        for number in range(count):
            folder = outputs / f"run-{number}"
            folder.mkdir(parents=True)
            folders.note_run(folder, f"r{number}")
            (folder / "config.yaml").write_text("trainer:\n  seed: 1\n")
            (folder / "summary.json").write_text('{"eval_loss": 0.5}')

        def listed() -> None:
            found, _ = find(None, scratch / "checkpoints", outputs)
            rows, _ = readable(found, _SHOWN)
            assert len(found) == count
            assert len(rows) == min(count, _SHOWN)

        return calls(listed)


def _recorded(folder: Path, count: int) -> Store:
    """A store of so many runs. One is recorded by MLflow; the others are its rows under other ids."""
    store = open_store(store_in(folder), "growth")
    client = store.client
    first = client.create_run(store.experiment_id).info.run_id
    params = {f"group{number // 10}.key{number}": str(number) for number in range(150)}
    tags = {tag_key(PARAMS): packed(params) or "", "runner.mesh": "single", "runner.model": "mlp"}
    tags |= {f"mlflow.runner.tag{number}": "value" for number in range(20)}
    client.log_batch(
        first,
        [Metric(name, 0.5, 1, 1) for name in _METRICS],
        [Param(key, value) for key, value in list(params.items())[:12]],
        [RunTag(key, value) for key, value in tags.items()],
    )
    client.set_terminated(first)
    others = [uuid.uuid4().hex for _ in range(count - 1)]
    with sqlite3.connect(folder / "mlflow.db") as database:
        for table in ("runs", "tags", "params", "latest_metrics"):
            _repeat(database, table, first, others)
    return store


def _repeat(database: sqlite3.Connection, table: str, first: str, others: list[str]) -> None:
    columns = [column[1] for column in database.execute(f"PRAGMA table_info({table})")]
    at = columns.index("run_uuid")
    rows = database.execute(f"SELECT * FROM {table} WHERE run_uuid = ?", (first,)).fetchall()
    copies = [(*row[:at], other, *row[at + 1 :]) for other in others for row in rows]
    database.executemany(f"INSERT INTO {table} VALUES ({','.join('?' * len(columns))})", copies)


def _stored_runs(count: int) -> float:
    """CPU seconds of a list of runs that a store knows and that wrote into folders."""
    with _scratch() as scratch:
        store = _recorded(scratch, count)

        def listed() -> None:
            found, _ = find(store, scratch / "checkpoints", scratch / "outputs")
            assert len(found) == count

        return cpu_seconds(listed)


def _compared_runs(count: int) -> float:
    """CPU seconds of the lines of a comparison."""
    with _scratch() as scratch:
        store = _recorded(scratch, count)

        def compared() -> None:
            (line,) = make_lines(load(store.client))
            assert len(line.records) == count

        return cpu_seconds(compared)


def _kept_points(count: int) -> float:
    """Points that pass between the runner and a store while those that were kept are stored."""
    with _scratch() as scratch:
        store = open_store(store_in(scratch), "growth")
        run = store.client.create_run(store.experiment_id).info.run_id
        path = scratch / f"{run}.jsonl"
        points = [Point(key, 0.5, 7, step) for step in range(count // 2) for key in ("loss", "accuracy")]
        unsent.write(path, store.uri, run, points)
        passed = 0
        history, batch = MlflowClient.get_metric_history, MlflowClient.log_batch

        def counted_history(client: MlflowClient, run_id: str, key: str) -> list[Metric]:
            nonlocal passed
            found = list(history(client, run_id, key))
            passed += len(found)
            return found

        def counted_batch(client: MlflowClient, run_id: str, metrics: list[Metric], synchronous: bool) -> None:
            nonlocal passed
            passed += len(metrics)
            batch(client, run_id, metrics, synchronous=synchronous)

        with (
            mock.patch.object(MlflowClient, "get_metric_history", counted_history),
            mock.patch.object(MlflowClient, "log_batch", counted_batch),
        ):
            assert replaying.replay(path, store.uri) == len(points)
        assert passed >= len(points)
        return passed


def _images(count: int) -> float:
    """Calls of a second start on a folder of images."""
    with _scratch() as scratch:
        data = encoded(picture(4, 4, 3), "PNG")
        for number in range(count):
            path = scratch / "images" / f"class{number % 2}" / f"{number}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
        config = DatasetConfig(name="image_folder", path=str(scratch / "images"))
        # As if the files had been written long ago: only such files are remembered.
        with mock.patch.object(file_records, "_CLOCK_TICK_NS", -(10**12)):
            image_folder.load(config)
            return calls(lambda: image_folder.load(config))


def _table(folder: Path, rows: int) -> Path:
    draw = np.random.default_rng(0)
    columns = {f"x{number}": np.round(draw.normal(size=rows), 3) for number in range(8)}
    words = np.array(["red", "green"])[draw.integers(0, 2, rows)]
    path = folder / "table.csv"
    pa.csv.write_csv(pa.table({**columns, "kind": words, "label": draw.integers(0, 2, rows)}), path)
    return path


def _peak(call: Callable[[], object]) -> int:
    """Returns the bytes of Arrow's peak in a call, and of the peak of Python and NumPy."""
    before = pa.default_memory_pool()
    pool = pa.proxy_memory_pool(before)
    _POOLS.append(pool)
    pa.set_memory_pool(pool)
    tracemalloc.start()
    try:
        call()
        return int(pool.max_memory()) + tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
        pa.set_memory_pool(before)


def _parsed_rows(rows: int) -> float:
    """Bytes that parsing a table takes."""
    with _scratch() as scratch:
        path = _table(scratch, rows)
        return _peak(lambda: tables.read(path))


def _mapped_rows(rows: int) -> float:
    """Bytes that a second start on a table takes."""
    with _scratch() as scratch:
        config = DatasetConfig(name="arrays", path=str(_table(scratch, rows)))
        arrays.load(config)
        return _peak(lambda: arrays.load(config))


def _started(measure: Callable[[int], float]) -> Callable[[int], float]:
    """Returns a measure without what the first call in a process imports and prepares."""

    def measured(size: int) -> float:
        measure(2)
        return measure(size)

    return measured


DIMENSIONS = (
    Dimension("runs in outputs/runs, listed (calls)", (50, 500, 5000), 1.05, _folders_of_runs),
    Dimension("runs in a store, listed (CPU s)", (50, 500, 5000), 1.3, _started(_stored_runs)),
    Dimension("runs in a store, compared (CPU s)", (50, 500, 5000), 1.3, _started(_compared_runs)),
    Dimension("kept points, stored (points read and sent)", (160, 1600, 16000), 1.05, _kept_points),
    Dimension("images, second start (calls)", (100, 1000, 10000), 1.05, _started(_images)),
    Dimension("rows of a CSV, parsed (bytes)", (10_000, 100_000, 1_000_000), 1.05, _parsed_rows),
    Dimension("rows of a CSV, second start (bytes)", (20_000, 200_000, 2_000_000), 0.1, _started(_mapped_rows)),
)

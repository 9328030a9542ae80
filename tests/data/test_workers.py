"""Workers: any number and kind of them gives the same bits in the caller's order; what fails or dies is named."""

import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from runner.config import values
from runner.config.schema_data import AugmentConfig, DatasetConfig
from runner.data import checks, workers
from runner.data.base import ArraySource, ArraySpec, ExampleSource, Rows
from runner.data.loading import load
from runner.errors import ConfigError, DataError
from tests import proc
from tests.data.pictures import folder

STEPS = [
    AugmentConfig("random_resized_crop", options={"size": [12, 12]}),
    AugmentConfig("flip"),
    AugmentConfig("color", options={"brightness": 0.2}),
]


class Slow(ExampleSource):
    """Makes an example from its row, in Python; each kind of trouble has a row."""

    size = 60
    specs = {"x": ArraySpec((3,), "float32")}  # noqa: RUF012
    fails, dies, sleeps, seconds = -1, -1, -1, 0.0

    def example(self, row: int, epoch: int = 0) -> dict[str, np.ndarray]:
        time.sleep(self.seconds)
        if row == self.fails:
            raise KeyError("no such word")
        if row == self.dies:
            os.kill(os.getpid(), signal.SIGKILL)
        if row == self.sleeps:
            time.sleep(600)
        return {"x": np.full(3, row + 100 * epoch, np.float32)}

    def example_name(self, row: int) -> str:
        return f"words of row {row}"

    def read(self, rows: Rows) -> dict[str, np.ndarray]:
        return {"x": np.stack([self.example(int(row))["x"] for row in rows])}


def slow(**keys: float) -> Slow:
    made = Slow()
    for key, value in keys.items():
        setattr(made, key, value)
    return made


def config(**keys: object) -> DatasetConfig:
    return DatasetConfig(**{"name": "image_folder", "test": None, "augment": STEPS} | keys)


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> str:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield str(folder(tmp_path_factory.mktemp("photos"), 50))


def test_any_number_of_threads_gives_the_bits_of_none(photos):
    rows = np.random.default_rng(0).integers(0, 40, (3, 17))
    seen = []
    for count in (0, 1, 2, 5):
        data = load(config(path=photos, workers=count), 7)
        with workers.opened(config(workers=count), 7) as opened:
            train, test = opened.reader(data.train), opened.reader(data.test)
            begun = [train.begin(epoch, rows) for epoch in (0, 3)]
            seen.append([begun[1].result(), begun[0].result(), test.read(0, np.arange(10))])
    for made in seen[1:]:
        for mine, theirs in zip(made, seen[0], strict=True):
            for name, array in theirs.items():
                np.testing.assert_array_equal(mine[name], array)
    assert seen[0][0]["image"].shape == (3, 17, 12, 12, 3)
    assert (seen[0][0]["image"] != seen[0][1]["image"]).any()


def test_arrays_in_memory_are_read_by_the_caller_and_start_nothing():
    source = ArraySource({"x": np.arange(6)}, {"x": ArraySpec((), "int64")})
    before = threading.active_count()
    with workers.opened(DatasetConfig(), 0) as opened:
        reader = opened.reader(source)
        assert not reader.in_background
        np.testing.assert_array_equal(reader.read(0, np.array([[3, 1], [0, 5]]))["x"], [[3, 1], [0, 5]])
        assert threading.active_count() == before


def test_threads_end_with_the_block_and_pending_reads_are_abandoned():
    before = set(threading.enumerate())
    with workers.opened(DatasetConfig(workers=2, worker_kind="thread"), 0) as opened:
        opened.reader(slow(seconds=0.01)).begin(0, np.zeros(5_000, np.int64))
        began = time.monotonic()
    assert time.monotonic() - began < 5
    assert set(threading.enumerate()) == before


@pytest.mark.parametrize("count", [0, 2])
def test_an_example_that_fails_is_named(count):
    with workers.opened(DatasetConfig(workers=count, worker_kind="thread"), 0) as opened:
        reading = opened.reader(slow(fails=33)).begin(0, np.arange(60))
        with pytest.raises(DataError, match=r"^words of row 33 can't be made \(KeyError: 'no such word'\)$"):
            reading.result()


def test_unavailable_workers_are_rejected():
    with pytest.raises(ConfigError, match=r"dataset.worker_kind=fork: must be one of thread, process"):
        values.check(DatasetConfig(worker_kind="fork"), "dataset")
    with pytest.raises(ConfigError, match=r"dataset.workers=-1: must be at least 0"):
        values.check(DatasetConfig(workers=-1), "dataset")
    with pytest.raises(ConfigError, match=r"dataset.workers=0: must be at least 1 with"):
        checks.check_augment(DatasetConfig(workers=0, worker_kind="process"))


_PROCESSES = """
import sys, time
import numpy as np
from runner.errors import DataError
from runner.config.schema_data import DatasetConfig
from runner.data import workers
from tests.data.test_workers import config, load, slow

if __name__ == "__main__":
    what, folder = sys.argv[1:]
    given = config(path=folder, workers=2, worker_kind="process")
    with workers.opened(given, 7) as opened:
        if what == "photos":
            data = load(given, 7)
            train, test = opened.reader(data.train), opened.reader(data.test)
            made = train.begin(3, np.arange(40).reshape(2, 20)), test.begin(0, np.arange(10))
            np.savez(folder + "/made.npz", **made[0].result(), **{"test_" + k: v for k, v in made[1].result().items()})
        else:
            reader = opened.reader(slow(**{what: 33}))
            reader.read(0, np.arange(16))
            if what == "sleeps":
                reader.begin(0, np.array([33]))
                time.sleep(1)
                print("begun", flush=True)
            if what == "dies":
                try:
                    reader.read(0, np.arange(60)[::-1])
                except DataError as error:
                    print(error)
        if what == "sleeps":
            if folder == "wait":
                time.sleep(600)
"""


def _script(tmp_path: Path, *given: str) -> list[str]:
    (tmp_path / "script.py").write_text(_PROCESSES)
    return [sys.executable, str(tmp_path / "script.py"), *given]


def _environment() -> dict[str, str]:
    return os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])}


def _ran(tmp_path: Path, *given: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        _script(tmp_path, *given), env=_environment(), capture_output=True, text=True, timeout=240, check=False
    )


@pytest.mark.nightly
def test_processes_give_the_bits_of_threads_and_leave_nothing(photos, tmp_path):
    done = _ran(tmp_path, "photos", photos)
    assert (done.returncode, done.stderr) == (0, "")
    data = load(config(path=photos), 7)
    with np.load(f"{photos}/made.npz") as made:
        for name, array in data.train.read(np.arange(40), epoch=3).items():
            np.testing.assert_array_equal(made[name].reshape(array.shape), array)
        for name, array in data.test.read(np.arange(10)).items():
            np.testing.assert_array_equal(made[f"test_{name}"], array)


@pytest.mark.nightly
@pytest.mark.slow
def test_a_process_that_dies_is_one_line_that_names_what_it_made(tmp_path):
    done = _ran(tmp_path, "dies", "")
    assert re.match(
        r"a data worker died while making \d+ examples, the first of them words of row \d+; if it", done.stdout
    )
    assert done.stdout.count("\n") == 1
    assert done.returncode == 0


@pytest.mark.nightly
def test_processes_end_with_a_parent_that_is_killed(tmp_path):
    environment = _environment() | {"TMPDIR": str(tmp_path)}
    with subprocess.Popen(_script(tmp_path, "sleeps", "wait"), env=environment, stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        assert parent.stdout.readline() == b"begun\n"
        children = proc.children_of(parent.pid)
        parent.kill()
    assert len(children) >= 2
    deadline = time.monotonic() + 20
    while any(proc.is_there(pid) for pid in children):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    assert not list(tmp_path.glob("runner-data-*"))

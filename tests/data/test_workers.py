"""Workers: any number of them gives the same bits in the caller's order; what fails is named."""

import threading
import time

import numpy as np
import pytest

from runner.config.schema_data import AugmentConfig, DatasetConfig
from runner.data import workers
from runner.data.base import ArraySource, ArraySpec, ExampleSource
from runner.data.loading import load
from runner.errors import DataError
from tests.data.pictures import folder

STEPS = [
    AugmentConfig("random_resized_crop", options={"size": [12, 12]}),
    AugmentConfig("flip"),
    AugmentConfig("color", options={"brightness": 0.2}),
]


class Slow(ExampleSource):
    """Makes an example from its row, in Python."""

    size = 60
    specs = {"x": ArraySpec((3,), "float32")}  # noqa: RUF012

    def __init__(self, fails: int = -1, seconds: float = 0.0) -> None:
        self.fails, self.seconds = fails, seconds

    def example(self, row: int, epoch: int = 0) -> dict[str, np.ndarray]:
        time.sleep(self.seconds)
        if row == self.fails:
            raise KeyError("no such word")
        return {"x": np.full(3, row + 100 * epoch, np.float32)}

    def example_name(self, row: int) -> str:
        return f"words of row {row}"


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
        with workers.Workers(config(workers=count)) as opened:
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
    with workers.Workers(DatasetConfig()) as opened:
        reader = opened.reader(source)
        assert not reader.in_background
        np.testing.assert_array_equal(reader.read(0, np.array([[3, 1], [0, 5]]))["x"], [[3, 1], [0, 5]])
        assert threading.active_count() == before


def test_threads_end_with_the_block_and_pending_reads_are_abandoned():
    before = set(threading.enumerate())
    with workers.Workers(DatasetConfig(workers=2)) as opened:
        opened.reader(Slow(seconds=0.01)).begin(0, np.zeros(5_000, np.int64))
        began = time.monotonic()
    assert time.monotonic() - began < 5
    assert set(threading.enumerate()) == before


@pytest.mark.parametrize("count", [0, 2])
def test_an_example_that_fails_is_named(count):
    said = r"^words of row 33 can't be made: KeyError: 'no such word' \(.*: raise KeyError"
    with workers.Workers(DatasetConfig(workers=count)) as opened, pytest.raises(DataError, match=said):
        opened.reader(Slow(fails=33)).read(0, np.arange(60))

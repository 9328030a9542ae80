"""`dataset=parquet`: the arrays of `dataset=arrays`, with a bounded number of row groups in memory."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from runner.config import values
from runner.config.schema_data import AugmentConfig, DatasetConfig
from runner.data import blocks, images, loading, tables
from runner.data import checks as checks_data
from runner.data.base import Array, Dataset, DataSource, Encoding
from runner.data.sampler import Draw, shuffled, shuffled_in_windows, train_plan
from runner.data.sources import table_blocks
from runner.data.workers import opened
from runner.errors import ConfigError, DataError
from tests.data.conftest import python
from tests.data.pictures import encoded, picture

ROWS = 100
GROUP = 8


@pytest.fixture(autouse=True)
def inside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def table(rows: int = ROWS) -> pa.Table:
    rng = np.random.default_rng(rows)
    return pa.table(
        {
            "rooms": np.arange(rows),
            "area (m2)": rng.normal(size=rows),
            "kind": [["flat", "house", "boat"][row % 3] for row in range(rows)],
            "vector": list(rng.normal(size=(rows, 3)).astype(np.float32)),
            "sold": rng.random(rows) < 0.5,
        }
    )


def write(path: str = "houses.parquet", rows: int = ROWS, group: int = GROUP) -> pa.Table:
    content = table(rows)
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(content, path, row_group_size=group)
    return content


def read(
    path: str = "houses.parquet", encoding: Encoding | None = None, name: str = "parquet", **keys: object
) -> Dataset:
    config = DatasetConfig(**({"name": name, "path": path, "test": "train"} | keys))  # type: ignore[arg-type]
    values.check(config, "dataset")
    checks_data.check(config)
    return loading.load(config, 0, encoding)


def same(ours: dict[str, Array], theirs: dict[str, Array]) -> None:
    assert list(ours) == list(theirs)
    for name, array in ours.items():
        assert array.dtype == theirs[name].dtype, name
        assert np.array_equal(array, theirs[name]), name


def decoded(source: DataSource, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Returns a list to which every decoded block of a source is added."""
    assert isinstance(source, blocks.BlockSource)
    numbers: list[int] = []
    original = source.decode_block

    def counted(number: int, name: str | None) -> blocks.Block:
        numbers.append(number)
        return original(number, name)

    monkeypatch.setitem(source.__dict__, "decode_block", counted)
    return numbers


@pytest.mark.parametrize("keys", [{}, {"standardize": True}, {"holdout": 0.25, "train": "train[:80%]+train[90%:]"}])
def test_every_split_specs_and_digest_are_those_of_dataset_arrays(keys: dict[str, object]) -> None:
    for split, rows in {"train": 100, "validation": 20, "test": 30}.items():
        write(f"data/{split}.parquet", rows)
    keys = {"test": None, **keys}
    ours, theirs = read("data", **keys), read("data", name="arrays", **keys)
    assert ours.specs == theirs.specs
    assert (ours.digest, ours.selection, ours.encoding) == (theirs.digest, theirs.selection, theirs.encoding)
    rng = np.random.default_rng(0)
    for split in ("train", "validation", "test"):
        first, second = getattr(ours, split), getattr(theirs, split)
        rows = rng.integers(0, second.size, 64)
        same(first.read(rows), second.read(rows))
        same(first.read(rows[:0]), second.read(rows[:0]))


def test_the_order_of_an_epoch_is_that_of_dataset_arrays_in_the_middle_of_it_too() -> None:
    write()
    ours, theirs = read(), read(name="arrays")
    for start in (0, 3):
        options = {"batch_size": 16, "seed": 5, "epoch": 2, "start_step": start}
        plans = [train_plan(ROWS, source=data.train, **options) for data in (ours, theirs)]  # type: ignore[arg-type]
        assert np.array_equal(plans[0].indices, plans[1].indices)
        same(ours.train.read(plans[0].indices[0]), theirs.train.read(plans[0].indices[0]))


def test_shards_of_hugging_face_and_globs_are_found() -> None:
    write("hub/data/train-00000-of-00002.parquet", 20)
    write("hub/data/train-00001-of-00002.parquet", 30)
    write("hub/data/test-00000-of-00001.parquet", 10)
    hub = read("hub", test=None)
    assert (hub.train.size, hub.test.size) == (50, 10)
    assert hub.train.read(np.array([19, 20]))["rooms"].tolist() == [19, 0]
    assert read("hub/data/train*.parquet").train.size == 50


def test_categories_are_the_recorded_ones() -> None:
    write()
    pq.write_table(pa.table({"kind": ["boat", "boat"]}), "other.parquet")
    encoding = read(features=["kind"]).encoding
    other = read("other.parquet", encoding)
    assert other.train.read(np.arange(2))["kind"].tolist() == [0, 0]
    assert other.specs["kind"].names == ("boat", "flat", "house")
    pq.write_table(pa.table({"kind": ["car"]}), "car.parquet")
    with pytest.raises(DataError, match=r"car.parquet, row group 1, kind: row 1 is 'car', which is not a category"):
        read("car.parquet", encoding).train.read(np.arange(1))


def test_a_batch_decodes_each_row_group_once_and_cached_ones_are_used_first(monkeypatch: pytest.MonkeyPatch) -> None:
    write()
    source = read().train
    # One decoded row group has 8 x (4 + 4 + 4 + 12 + 1) bytes, and the cache room for three of them.
    monkeypatch.setattr(source.cache, "_max_bytes", 600)  # type: ignore[attr-defined]
    numbers = decoded(source, monkeypatch)
    rows = np.arange(0, 40)[::-1]
    source.read(rows)
    assert sorted(numbers) == [0, 1, 2, 3, 4]
    numbers.clear()
    source.read(np.arange(8, 40))
    assert numbers == [1], "2, 3 and 4 were decoded last, and are read before 1 is decoded"


def test_a_row_group_that_is_larger_than_the_cache_is_kept_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    write()
    source = read().train
    monkeypatch.setattr(source.cache, "_max_bytes", 1)  # type: ignore[attr-defined]
    numbers = decoded(source, monkeypatch)
    for _ in range(3):
        source.read(np.array([1, 3]))
    assert numbers == [0]
    source.read(np.array([9, 1]))
    assert numbers == [0, 1], "the cached one is read first"


@given(sizes=st.lists(st.integers(1, 9), min_size=1, max_size=12), window=st.integers(1, 5), epoch=st.integers(0, 3))
def test_a_windowed_order_is_a_permutation_of_whole_blocks(sizes: list[int], window: int, epoch: int) -> None:
    numbers = np.repeat(np.arange(len(sizes)), sizes)
    draw = Draw(7, epoch)
    order = shuffled_in_windows(draw, numbers, window)
    assert sorted(order.tolist()) == list(range(len(numbers)))
    assert np.array_equal(order, shuffled_in_windows(draw, numbers, window))
    if len(sizes) <= window:
        assert np.array_equal(order, shuffled(draw, len(numbers)))
        return
    # The blocks in the order in which an epoch begins to read them; every window of them is read before the next.
    blocks_in_order = list(dict.fromkeys(numbers[order].tolist()))
    done = 0
    while blocks_in_order:
        # The first example of a block may be anywhere in its window, so the window is found by its examples.
        count = min(window, len(blocks_in_order))
        in_window = set(blocks_in_order[:count])
        total = sum(sizes[number] for number in in_window)
        assert set(numbers[order[done : done + total]].tolist()) == in_window
        blocks_in_order = blocks_in_order[count:]
        done += total


@pytest.mark.parametrize("keys", [{}, {"standardize": True}, {"train": "train[13:91]", "holdout": 0.2}])
def test_a_shuffle_window_decodes_each_row_group_once_per_epoch(
    keys: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    write(rows=400)
    data = read(shuffle_window=4, **keys)
    source = data.train
    while not isinstance(source, blocks.BlockSource):
        source = source.pieces[0][0] if hasattr(source, "pieces") else source.inner  # type: ignore[attr-defined]
    monkeypatch.setattr(source.cache, "_max_bytes", 5 * GROUP * 25)
    orders = []
    for epoch in range(2):
        numbers = decoded(source, monkeypatch)
        source.cache._blocks.clear()
        source.cache._bytes = 0
        plan = train_plan(data.train.size, batch_size=6, seed=1, epoch=epoch, source=data.train, remainder="pad")
        orders.append(plan.indices[plan.weights > 0])
        for indices in plan.indices:
            data.train.read(indices)
        # Padding reads row 0.
        assert len(numbers) <= len(set(numbers)) + 1
        assert sorted(orders[-1].tolist()) == list(range(data.train.size))
    assert not np.array_equal(*orders)
    whole = train_plan(data.train.size, batch_size=6, seed=1, epoch=1, source=data.train)
    rest = train_plan(data.train.size, batch_size=6, seed=1, epoch=1, source=data.train, start_step=5)
    assert np.array_equal(whole.indices[5:], rest.indices)


def images_table(sizes: list[tuple[int, int]], gray: bool = False) -> tuple[pa.Table, list[Array]]:
    pictures = [picture(*size, seed=row, channels=1 if gray else 3) for row, size in enumerate(sizes)]
    files = [encoded(pixels, "PNG") for pixels in pictures]
    labels = [row % 2 for row in range(len(sizes))]
    return pa.table({"image": files, "label": labels}), pictures


@pytest.mark.parametrize("form", ["bytes", "struct"])
def test_columns_of_bytes_are_decoded_as_images(form: str) -> None:
    content, pictures = images_table([(6, 5)] * 20)
    if form == "struct":
        column = pa.StructArray.from_arrays(
            [content["image"].combine_chunks(), pa.array(["a.png"] * 20)], names=["bytes", "path"]
        )
        content = content.set_column(0, "image", column)
    pq.write_table(content, "images.parquet", row_group_size=6)
    data = read("images.parquet", train="train[3:]")
    assert data.specs["image"].dims == ("height", "width", "channel")
    assert data.specs["image"].shape == (6, 5, 3)
    rows = np.array([16, 0, 5, 5])
    found = data.train.read(rows)
    assert np.array_equal(found["image"], np.stack([pictures[row + 3] for row in rows]))
    assert found["label"].tolist() == [1, 1, 0, 0]
    with opened(DatasetConfig(workers=2), 0) as workers:
        same(workers.reader(data.train).read(0, rows), found)


def test_images_of_several_sizes_are_resized_and_gray_ones_have_one_channel() -> None:
    content, pictures = images_table([(6, 5), (9, 4)], gray=True)
    pq.write_table(content, "images.parquet")
    with pytest.raises(ConfigError, match=r"dataset.image_size.*2 different sizes \(heights 6 to 9, widths 4 to 5\)"):
        read("images.parquet")
    data = read("images.parquet", image_size=[4, 4])
    assert data.specs["image"].shape == (4, 4, 1)
    expected = [images.resize(pixels, (4, 4)) for pixels in pictures]
    assert np.array_equal(data.train.read(np.arange(2))["image"], np.stack(expected))


def test_a_random_crop_is_of_the_original_image() -> None:
    content, _ = images_table([(40, 30), (35, 50)])
    pq.write_table(content.append_column("size", [[1.0, 2.0]]), "images.parquet")
    step = AugmentConfig("random_resized_crop", options={"size": [8, 8]})
    whole = read("images.parquet", augment=[step], standardize=True).train.read(np.arange(2))
    resized = read("images.parquet", augment=[step], standardize=False).train.read(np.arange(2))
    assert np.array_equal(whole["image"], resized["image"])
    source = read("images.parquet", image_size=[8, 8]).train
    assert source.original(0)["image"].shape == (40, 30, 3)  # type: ignore[attr-defined]


def test_a_source_can_be_sent_to_another_process() -> None:
    content, pictures = images_table([(6, 5)] * 4)
    pq.write_table(content, "images.parquet")
    source = pickle.loads(pickle.dumps(read("images.parquet").train))
    assert np.array_equal(source.read(np.array([2]))["image"][0], pictures[2])


def column(name: str, *values: object, **options: object) -> None:
    pq.write_table(pa.table({name: pa.array(values, **options)}), "a.parquet", row_group_size=2)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("values_", "problem"),
    [
        ((1.0, 2.0, 3.0, None), "a.parquet, row group 2, x: row 2 is missing"),
        ((1.0, 2.0, 3.0, float("nan")), "a.parquet, row group 2, x: row 2 is missing (NaN)"),
        ((1, 2, 3, 2**40), "a.parquet, row group 2, x has integers outside the int32 range"),
        ((["a"], ["b"], ["c"]), "a.parquet, row group 1, x has lists of string"),
        (([1], [2], [3, 4], [5, 6]), "a.parquet, row group 2, x: int32 [2] per example, but int32 [1] before"),
        (([1], [2], [3], [4, 5]), "a.parquet, row group 2, x: row 2 has 2 numbers, but row 1 has 1"),
        (("a", "1"), "a.parquet, x has the string 'a', but other rows are numbers"),
        ((b"ab", b"cd"), "a.parquet, row group 1, x: row 1 is not a readable image (unknown image format)"),
        (tuple(f"text {row}" for row in range(40)), "40 distinct strings in 40 rows and looks like free text"),
    ],
)
def test_values_that_no_array_can_represent_are_errors_of_the_first_start(
    values_: tuple[object, ...], problem: str
) -> None:
    column("x", *values_)
    with pytest.raises(DataError) as error:
        read("a.parquet")
    assert problem in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("name", ["parquet", "arrays"])
def test_a_row_group_whose_sequences_are_all_empty_is_padded(name: str) -> None:
    nested = pa.array([[], [], [[1.0, 2.0, 3.0]], []], pa.list_(pa.list_(pa.float32())))
    content = pa.table({"features": nested, "none": pa.array([[]] * 4, pa.list_(pa.null()))})
    pq.write_table(content, "houses.parquet", row_group_size=2)
    data = read(name=name, pad={"features": 0.5, "none": 0})
    rows = data.train.read(np.arange(4))
    assert rows["features"].shape == (4, 1, 3)
    assert rows["features"][:, 0, 0].tolist() == [0.5, 0.5, 1.0, 0.5]
    assert (rows["none"].dtype, rows["none"].tolist()) == (np.int32, [[0]] * 4)


def test_lists_without_entries_are_an_empty_array() -> None:
    nested = pa.array([[], []], pa.list_(pa.list_(pa.float32())))
    assert tables.convert_column("x", pa.chunked_array([nested])).shape == (2, 0, 0)  # type: ignore[union-attr]


def test_files_that_differ_or_are_broken_are_errors() -> None:
    write("data/a.parquet")
    pq.write_table(pa.table({"rooms": [1]}), "data/b.parquet")
    with pytest.raises(DataError, match=r"only one of them has area \(m2\), kind, sold, vector"):
        read("data")
    assert read("data", features=["rooms"]).train.size == ROWS + 1
    with pytest.raises(ConfigError, match=r"dataset.features=nope: unknown column"):
        read("data", features=["nope"])
    Path("data/b.parquet").write_bytes(b"PAR1")
    with pytest.raises(DataError, match=r"b.parquet can't be read"):
        read("data", features=["rooms"])


def test_a_feature_is_the_column_of_its_exact_name() -> None:
    pq.write_table(pa.table({"a b": [1.0, 2.0], "a_b": [3.0, 4.0], "a-b": [5.0, 6.0]}), "a.parquet")
    for name, first in {"a b": 1, "a_b": 3, "a-b": 5}.items():
        assert read("a.parquet", features=[name]).train.read(np.arange(1))["a_b"].tolist() == [first]
    with pytest.raises(ConfigError, match=r"dataset.features=a/b: means several columns \(a b, a_b, a-b\)"):
        read("a.parquet", features=["a/b"])


@pytest.mark.parametrize(
    ("keys", "problem"),
    [
        ({"path": "nowhere.parquet"}, "does not exist, but must be a .parquet file"),
        ({"path": "houses.csv"}, "dataset.path=houses.csv: must be a .parquet file"),
        ({"cache_mib": 0}, "dataset.cache_mib=0: must be at least 1"),
        ({"shuffle_window": 0}, "dataset.shuffle_window=0: must be at least 1"),
        ({"shuffle_window": 2, "shuffle": False}, "dataset.shuffle_window=2: needs dataset.shuffle=true"),
        ({"name": "arrays", "shuffle_window": 2}, "dataset=arrays has no such key; remove dataset.shuffle_window"),
    ],
)
def test_invalid_keys_are_rejected(keys: dict[str, object], problem: str) -> None:
    write()
    Path("houses.csv").write_text("a\n1\n")
    with pytest.raises(ConfigError) as error:
        read(**keys)  # type: ignore[arg-type]
    assert problem in str(error.value)


def test_a_window_that_the_cache_has_no_room_for_is_rejected_and_an_exact_shuffle_of_more_warns(
    caplog: pytest.LogCaptureFixture,
) -> None:
    pq.write_table(pa.table({"x": np.arange(1 << 20, dtype=np.float32)}), "a.parquet", row_group_size=1 << 17)
    with pytest.raises(ConfigError) as error:
        read("a.parquet", cache_mib=2, shuffle_window=4, standardize=False)
    assert "5" not in str(error.value).partition(":")[0]
    assert "set dataset.cache_mib=3 or dataset.shuffle_window=3" in str(error.value)
    read("a.parquet", cache_mib=3, shuffle_window=4, standardize=False)
    assert not caplog.records
    read("a.parquet", cache_mib=3, standardize=False)
    assert "the data has 4 MiB decoded, but dataset.cache_mib=3" in caplog.text
    assert "set dataset.shuffle_window=5" in caplog.text


def test_the_second_start_reads_only_files_that_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    write("data/a.parquet")
    write("data/b.parquet")
    monkeypatch.setattr(table_blocks, "latest_recordable_ns", lambda: 1 << 62)
    first = read("data", standardize=False)
    scanned: list[str] = []
    add = table_blocks.ScannedTable.add

    def counted(self: table_blocks.ScannedTable, content: pa.Table, where: str, pad: tuple[str, ...]) -> None:
        scanned.append(where)
        add(self, content, where, pad)

    monkeypatch.setattr(table_blocks.ScannedTable, "add", counted)
    second = read("data", standardize=False)
    assert not scanned
    assert (second.digest, second.specs) == (first.digest, first.specs)
    write("data/b.parquet", 3)
    third = read("data", standardize=False)
    assert [where.partition(",")[0] for where in scanned] == ["data/b.parquet"]
    assert third.digest != first.digest


MEMORY = """
import json, sys
import numpy as np
import runner.data.sources.parquet
from runner.config.schema_data import DatasetConfig
from runner.data.loading import load
from runner.data.sampler import train_plan

def peak():
    for line in open("/proc/self/status"):
        if line.startswith("VmHWM"):
            return int(line.split()[1]) << 10

before = peak()
data = load(DatasetConfig(**json.loads(sys.argv[1])))
plan = train_plan(data.train.size, batch_size=1024, seed=0, epoch=0, source=data.train)
total = 0.0
for indices in plan.indices:
    total += float(data.train.read(indices)["x"].sum(dtype=np.float64))
print(json.dumps([peak() - before, total]))
"""


@pytest.mark.nightly
def test_memory_is_bounded_by_the_cache_and_not_by_the_file() -> None:
    cache, group = 48, 1 << 13
    peaks = []
    for name, groups in {"a": 12, "b": 48}.items():
        schema = pa.schema({"x": pa.list_(pa.float32(), 256)})
        total = 0.0
        with pq.ParquetWriter(f"{name}.parquet", schema) as writer:
            for number in range(groups):
                content = np.random.default_rng(number).random((group, 256), np.float32)
                total += float(content.sum(dtype=np.float64))
                vectors = pa.FixedSizeListArray.from_arrays(pa.array(content.ravel()), 256)
                writer.write_table(pa.table({"x": vectors}, schema=schema))
        keys = {"name": "parquet", "path": f"{name}.parquet", "test": "train[:1]", "cache_mib": cache}
        out, err = python(MEMORY, json.dumps({**keys, "shuffle_window": 4})).communicate()
        peak, found = json.loads(out or err)
        assert found == pytest.approx(total, rel=1e-9)
        peaks.append(peak / (1 << 20))
    # The cache; the row group of 8 MiB that is decoded, which takes five times its size (measured); and what PyArrow's
    # and NumPy's allocators keep. The first file has twice the size of the cache, the second one eight times.
    assert peaks[0] < cache + 5 * 8 + 96, peaks
    # The order of the 294,912 further examples takes 8 bytes each, several times while it is drawn.
    assert peaks[1] < peaks[0] + 24, peaks

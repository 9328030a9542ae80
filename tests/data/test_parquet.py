"""`dataset=parquet`: the arrays of `dataset=arrays`, row by row."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from runner.config.schema_data import AugmentConfig, DatasetConfig
from runner.data.base import Array, Dataset, Encoding
from runner.data.workers import Workers
from runner.errors import ConfigError, DataError
from tests.data.conftest import opened
from tests.data.pictures import encoded, picture

ROWS = 100
GROUP = 8


pytestmark = pytest.mark.usefixtures("inside")


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
    return opened(encoding, **({"name": name, "path": path, "test": "train"} | keys))


def same(ours: dict[str, Array], theirs: dict[str, Array]) -> None:
    assert list(ours) == list(theirs)
    for name, array in ours.items():
        assert array.dtype == theirs[name].dtype, name
        assert np.array_equal(array, theirs[name]), name


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
    with Workers(DatasetConfig(workers=2)) as workers:
        same(workers.reader(data.train).read(0, rows), found)


def test_a_random_crop_is_of_the_original_image() -> None:
    content, _ = images_table([(40, 30), (35, 50)])
    pq.write_table(content.append_column("size", [[1.0, 2.0]]), "images.parquet")
    step = AugmentConfig("random_resized_crop", options={"size": [8, 8]})
    whole = read("images.parquet", augment=[step], standardize=True).train.read(np.arange(2))
    resized = read("images.parquet", augment=[step], standardize=False).train.read(np.arange(2))
    assert np.array_equal(whole["image"], resized["image"])
    source = read("images.parquet", image_size=[8, 8]).train
    assert source.original(0)["image"].shape == (40, 30, 3)  # type: ignore[attr-defined]


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

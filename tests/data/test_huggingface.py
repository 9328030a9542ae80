"""`dataset=huggingface`: the examples that the library `datasets` has, read without it."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.ipc
import pytest

from runner.config.schema_data import DatasetConfig
from runner.data.base import Dataset, Encoding
from runner.data.workers import Workers
from runner.errors import ConfigError, DataError
from tests.data.conftest import opened
from tests.data.pictures import encoded, picture

# Writes a dataset with the library in every form, and what the library reads from it.
WRITE = """
import numpy as np
import datasets
from PIL import Image

features = datasets.Features({
    "image": datasets.Image(),
    "label": datasets.ClassLabel(names=["cat", "dog"]),
    "grid": datasets.Array2D((2, 3), "float32"),
    "vector": datasets.Sequence(datasets.Value("float64"), length=4),
    "kind": datasets.Value("string"),
    "text": datasets.Value("string"),
})

def examples(count):
    rng = np.random.default_rng(count)
    for row in range(count):
        pixels = rng.integers(0, 256, (5, 4, 3), np.uint8)
        yield {
            "image": Image.fromarray(pixels), "label": row % 2, "grid": rng.random((2, 3), np.float32).tolist(),
            "vector": rng.random(4).tolist(), "kind": "ab"[row % 2], "text": f"number {row}",
        }

def made(count):
    columns = {name: [] for name in features}
    for example in examples(count):
        for name, value in example.items():
            columns[name].append(value)
    return datasets.Dataset.from_dict(columns, features=features)

splits = datasets.DatasetDict({"train": made(250), "validation": made(30), "test": made(20)})
splits.save_to_disk("splits", num_shards={"train": 3, "validation": 1, "test": 1})
splits["train"].shuffle(seed=1).select(range(40)).save_to_disk("shuffled")
for split, dataset in splits.items():
    dataset.to_parquet(f"hub/data/{split}-00000-of-00001.parquet", batch_size=64)
for form, dataset in {"splits": splits["train"], "shuffled": datasets.load_from_disk("shuffled")}.items():
    read = dataset.remove_columns("text").with_format("numpy")[:]
    np.savez(f"{form}.npz", **{name: np.stack([np.asarray(value) for value in read[name]]) for name in read})
"""

pytestmark = pytest.mark.usefixtures("inside")
COLUMNS = ["image", "label", "grid", "vector", "kind"]


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("datasets", reason="the library writes the files that this module reads")
    folder = tmp_path_factory.mktemp("saved")
    environment = {"HF_HUB_OFFLINE": "1", "HF_HOME": str(folder / "home"), "PATH": "/usr/bin"}
    subprocess.run([sys.executable, "-c", WRITE], cwd=folder, env=environment, check=True, capture_output=True)
    return folder


def read(path: Path | str, encoding: Encoding | None = None, **keys: object) -> Dataset:
    return opened(encoding, **({"name": "huggingface", "path": str(path), "test": None, "features": COLUMNS} | keys))


def compare(data: Dataset, expected: Path, rows: np.ndarray) -> None:
    found = data.train.read(rows)
    arrays = np.load(expected)
    assert list(found) == COLUMNS
    for name in ("image", "label", "grid"):
        assert np.array_equal(found[name], arrays[name][rows]), name
    assert np.array_equal(found["vector"], arrays["vector"][rows].astype(np.float32))
    assert [data.specs["kind"].names[number] for number in found["kind"]] == arrays["kind"][rows].tolist()


@pytest.mark.parametrize("form", ["splits", "hub"])
def test_examples_classes_and_splits_are_those_of_the_library(saved: Path, form: str) -> None:
    data = read(saved / form)
    assert data.validation is not None
    assert (data.train.size, data.validation.size, data.test.size) == (250, 30, 20)
    assert {name: (spec.shape, spec.dtype, spec.names) for name, spec in data.specs.items()} == {
        "image": ((5, 4, 3), "uint8", ()),
        "label": ((), "int32", ("cat", "dog")),
        "grid": ((2, 3), "float32", ()),
        "vector": ((4,), "float32", ()),
        "kind": ((), "int32", ("a", "b")),
    }
    rows = np.random.default_rng(0).integers(0, 250, 64)
    compare(data, saved / "splits.npz", rows)
    label = data.train.column("label")  # type: ignore[attr-defined]
    assert label.tolist() == [row % 2 for row in range(250)]
    with Workers(DatasetConfig(workers=2)) as workers:
        found = workers.reader(data.train).read(0, rows)
    assert np.array_equal(found["image"], data.train.read(rows)["image"])


def test_files_named_as_splits_are_read_and_the_librarys_cache_is_an_error() -> None:
    for split in ("train", "test"):
        table = pa.table({"x": np.arange(6.0), "label": [0, 1] * 3})
        Path("plain").mkdir(exist_ok=True)
        with pa.ipc.new_file(f"plain/{split}.arrow", table.schema) as writer:
            writer.write_table(table, max_chunksize=4)
    plain = read("plain", features=None)
    assert plain.train.read(np.array([5, 0, 4]))["x"].tolist() == [5, 0, 4]
    assert read("plain/test.arrow", test="train", features=None).train.size == 6
    Path("plain/dataset_info.json").write_text("{}")
    with pytest.raises(DataError, match="plain is a cache of the library datasets; save the dataset with"):
        read("plain")


def test_texts_are_tokens_for_language_models(saved: Path) -> None:
    keys = {"name": "text", "column": "text", "sequence_length": 16, "tokenizer": "bytes", "features": None}
    data = read(saved / "splits", **keys, data_dir="tokens")
    assert data.texts["train"].documents == 250
    assert data.texts["test"].documents == 20
    first = bytes(data.train.read(np.array([0]))["tokens"][0].astype(np.uint8))
    assert first.startswith(b"number 0")
    with pytest.raises(DataError, match=r"there is no column 'nope' \(the columns: image, label, grid,"):
        read(saved / "splits", **{**keys, "column": "nope"}, data_dir="others")


def test_labels_outside_the_classes_are_errors_of_the_split_that_has_them(saved: Path) -> None:
    shutil.copytree(saved / "splits", "withheld")
    path = Path("withheld/test/data-00000-of-00001.arrow")
    table = pa.ipc.open_stream(path.read_bytes()).read_all()
    column = table.schema.get_field_index("label")
    table = table.set_column(column, table.schema.field("label"), pa.array([-1] * len(table)))
    with pa.ipc.new_stream(path, table.schema) as writer:
        writer.write_table(table)
    data = read("withheld")
    data.train.read(np.arange(3))
    with pytest.raises(DataError, match=r"label has the class -1, but there are 2 classes, .* may be withheld"):
        data.test.read(np.arange(3))


def write_arrow(path: str, **columns: object) -> None:
    table = pa.table(columns)
    Path(path).parent.mkdir(exist_ok=True)
    with pa.ipc.new_stream(path, table.schema) as writer:
        writer.write_table(table)


def test_files_without_rows_and_with_other_types_of_numbers_are_one_table() -> None:
    pictures = [encoded(picture(4, 3, seed=row), "PNG") for row in range(5)]
    write_arrow("a/0.arrow", x=pa.array([], pa.null()), image=pa.array([], pa.binary()))
    write_arrow("a/1.arrow", x=pa.array([1, 2], pa.int32()), image=pictures[:2])
    write_arrow("a/2.arrow", x=pa.array([3, 4, 5], pa.int64()), image=pictures[2:])
    # Written by the library next to its data.
    write_arrow("a/cache-0a1b.arrow", x=[9], image=pictures[:1])
    data = read("a", features=None, test="train[:1]").train
    assert data.size == 5
    assert data.column("x").tolist() == [1, 2, 3, 4, 5]  # type: ignore[attr-defined]
    assert np.array_equal(data.read(np.array([4, 1]))["image"], [picture(4, 3, seed=4), picture(4, 3, seed=1)])
    numbers = read("a", features=["x"], test="train[:1]").train
    assert numbers.read(np.array([3, 0]))["x"].tolist() == [4, 1]
    write_arrow("none/train.arrow", x=pa.array([], pa.int32()))
    with pytest.raises(DataError, match=r"none/train.arrow has no examples"):
        read("none", features=None)


def write_labels(path: str, names: list[str] | None, labels: list[int]) -> None:
    features = {"label": {"_type": "ClassLabel", "names": names}}
    metadata = None if names is None else {"huggingface": json.dumps({"info": {"features": features}})}
    schema = pa.schema({"label": pa.int64()}, metadata)
    Path(path).parent.mkdir(exist_ok=True)
    with pa.ipc.new_stream(path, schema) as writer:
        writer.write_table(pa.table({"label": labels}, schema))


def test_classes_in_another_order_than_the_runs_or_another_files_are_errors() -> None:
    write_labels("a/train.arrow", ["cat", "dog"], [0, 1])
    write_labels("a/test.arrow", ["cat", "dog"], [1])
    recorded = read("a", features=None).encoding
    assert recorded.categories == {"label": ("cat", "dog")}
    assert read("a", recorded, features=None).encoding == recorded
    write_labels("b/train.arrow", ["dog", "cat"], [0, 1])
    with pytest.raises(DataError, match=r"b/train.arrow, label: .* dog, cat, but those of the run mean cat, dog"):
        read("b", recorded, test="train", features=None)
    write_labels("a/test.arrow", ["dog", "cat"], [1])
    with pytest.raises(DataError, match=r"a/test.arrow, label: .* dog, cat, but those of a/train.arrow mean cat, dog"):
        read("a", features=None)
    write_labels("a/test.arrow", None, [1])
    assert read("a", features=None).specs["label"].names == ("cat", "dog")


@pytest.mark.parametrize(
    ("path", "problem"),
    [
        (
            "ylecun/mnist",
            "nothing is downloaded; run `hf download --repo-type dataset ylecun/mnist --local-dir mnist`, then set "
            "dataset.path=mnist",
        ),
        ("nowhere", "does not exist"),
        ("notes.txt", "dataset.path=notes.txt: must be a folder that save_to_disk wrote"),
        ("both", "dataset.path=both: has the same split in several folders (both/a, both/b)"),
    ],
)
def test_invalid_paths_are_rejected(path: str, problem: str) -> None:
    Path("notes.txt").write_text("none")
    table = pa.table({"x": [1.0, 2.0]})
    for configuration in ("a", "b"):
        folder = Path("both", configuration)
        folder.mkdir(parents=True)
        pa.parquet.write_table(table, folder / "train-00000-of-00001.parquet")
    with pytest.raises(ConfigError) as error:
        read(path, features=None)
    assert problem in str(error.value)


def test_broken_files_are_errors() -> None:
    folder = Path("broken")
    folder.mkdir()
    (folder / "state.json").write_text("{")
    with pytest.raises(DataError, match=r"broken/state.json can't be read"):
        read(folder)
    (folder / "state.json").write_text(json.dumps({"_data_files": [{"filename": "../../data.arrow"}]}))
    with pytest.raises(DataError, match=r"broken/data.arrow can't be read"):
        read(folder)
    (folder / "data.arrow").write_bytes(b"no arrow")
    with pytest.raises(DataError, match=r"broken/data.arrow can't be read"):
        read(folder)
    (folder / "state.json").write_text("{}")
    with pytest.raises(DataError, match=r"lists no files"):
        read(folder)

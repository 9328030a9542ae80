"""`dataset=array_record`: records of `tf.train.Example`, read in any order without TensorFlow."""

from __future__ import annotations

import pickle
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
from array_record.python import array_record_module as module

from runner.config import values
from runner.config.schema_data import DatasetConfig
from runner.data import checks as checks_data
from runner.data import loading
from runner.data.base import Array, Dataset, Rows
from runner.data.sampler import train_plan
from runner.data.sources import array_record
from runner.data.sources.array_record import Example
from runner.data.workers import opened
from runner.errors import ConfigError, DataError
from tests.data.pictures import encoded, picture

# More than one block of the scan.
SIZE = 300


@pytest.fixture(autouse=True)
def inside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def record(features: Mapping[str, object]) -> bytes:
    example = Example()
    for name, value in features.items():
        feature = example.features.feature[name]
        entries = value if isinstance(value, list | np.ndarray) else [value]
        if all(isinstance(entry, bytes) for entry in entries):
            feature.bytes_list.value.extend(entries)
        elif all(isinstance(entry, float | np.floating) for entry in entries):
            feature.float_list.value.extend(entries)
        else:
            feature.int64_list.value.extend(entries)
    content: bytes = example.SerializeToString(deterministic=True)
    return content


def write(path: str, records: list[bytes], group_size: int = 1) -> None:
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    writer = module.ArrayRecordWriter(path, f"group_size:{group_size}")
    for content in records:
        writer.write(content)
    writer.close()


def made(size: int = SIZE) -> dict[str, Array]:
    rng = np.random.default_rng(size)
    return {
        "vector": rng.normal(size=(size, 3)).astype(np.float32),
        "price": rng.normal(size=size).astype(np.float32),
        "label": rng.integers(-5, 1 << 20, size),
        "tokens": rng.integers(0, 300, (size, 7)),
    }


def records_of(arrays: Mapping[str, Array]) -> list[bytes]:
    size = len(next(iter(arrays.values())))
    return [record({name: array[row] for name, array in arrays.items()}) for row in range(size)]


def read(path: str, **keys: object) -> Dataset:
    config = DatasetConfig(**({"name": "array_record", "path": path, "test": "train[:10]"} | keys))  # type: ignore[arg-type]
    values.check(config, "dataset")
    checks_data.check(config)
    return loading.load(config, 0)


@pytest.mark.parametrize("group_size", [1, 50])
def test_numbers_and_vectors_are_read_in_any_order_and_in_another_process(group_size: int) -> None:
    arrays = made()
    records = records_of(arrays)
    write("data/train-00000-of-00002.array_record", records[:200], group_size)
    write("data/train-00001-of-00002.array_record", records[200:], group_size)
    data = read("data")
    assert {name: (spec.shape, spec.dtype) for name, spec in data.specs.items()} == {
        "label": ((), "int32"),
        "price": ((), "float32"),
        "tokens": ((7,), "int32"),
        "vector": ((3,), "float32"),
    }
    rows = np.random.default_rng(0).integers(0, SIZE, 64)
    for source in (data.train, pickle.loads(pickle.dumps(data.train))):
        found = source.read(rows)
        for name, array in arrays.items():
            assert np.array_equal(found[name], array[rows]), name
    label = data.train.column("label")  # type: ignore[attr-defined]
    assert np.array_equal(label, arrays["label"])
    # The exact shuffle of data in memory.
    orders = [train_plan(SIZE, batch_size=8, seed=3, epoch=1, source=source).indices for source in (data.train, None)]
    assert np.array_equal(*orders)
    # A later start reads the records of the scan, and has the same digest.
    assert read("data").digest == data.digest
    few = read("data", features=["vector"], standardize=True)
    whole = arrays["vector"].astype(np.float64)
    expected = (whole - whole.mean(0)) / whole.std(0)
    np.testing.assert_allclose(few.train.read(rows)["vector"], expected[rows], rtol=1e-5, atol=1e-6)


def test_few_records_are_parsed_at_once_whatever_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    arrays = made()
    write("a.array_record", records_of(arrays))
    data = read("a.array_record")
    sizes = []
    records = array_record.ArrayRecordTable._records

    def counted(table: array_record.ArrayRecordTable, rows: Rows) -> list[object]:
        sizes.append(len(rows))
        return records(table, rows)

    monkeypatch.setattr(array_record.ArrayRecordTable, "_records", counted)
    assert np.array_equal(data.train.column("label"), arrays["label"])  # type: ignore[attr-defined]
    assert np.array_equal(data.train.read(np.arange(SIZE))["tokens"], arrays["tokens"])
    assert sum(sizes) >= 2 * SIZE
    assert max(sizes) <= 256


def test_classes_in_another_order_than_the_runs_are_errors(tmp_path: Path) -> None:
    write("made/train.array_record", [record({"label": row % 2}) for row in range(20)])
    (tmp_path / "made/label.labels.txt").write_text("cat\ndog\n")
    recorded = read("made").encoding
    (tmp_path / "made/label.labels.txt").write_text("dog\ncat\n")
    config = DatasetConfig(name="array_record", path="made", test="train[:10]")
    with pytest.raises(DataError, match=r"made, label: .* dog, cat, but those of the run mean cat, dog"):
        loading.load(config, 0, recorded)


def test_images_strings_and_the_splits_and_classes_of_tfds(tmp_path: Path) -> None:
    pictures = [picture(6, 5, seed=row) for row in range(24)]
    records = []
    for row, pixels in enumerate(pictures):
        features = {"image/encoded": encoded(pixels, "PNG"), "label": row % 2, "kind": b"red" if row % 3 else b"blue"}
        records.append(record(features))
    write("made/1.0.0/made-train.array_record-00000-of-00002", records[:10])
    write("made/1.0.0/made-train.array_record-00001-of-00002", records[10:20])
    write("made/1.0.0/made-test.array_record-00000-of-00001", records[20:])
    (tmp_path / "made/1.0.0/label.labels.txt").write_text("cat\ndog\n")
    data = read("made/1.0.0", test=None)
    assert (data.train.size, data.test.size) == (20, 4)
    assert data.specs["label"].names == ("cat", "dog")
    assert data.specs["kind"].names == ("blue", "red")
    rows = np.array([19, 3, 3, 0])
    found = data.train.read(rows)
    assert np.array_equal(found["image_encoded"], [pictures[row] for row in rows])
    assert found["kind"].tolist() == [int(row % 3 > 0) for row in rows]
    assert np.array_equal(data.test.read(np.array([2]))["image_encoded"][0], pictures[22])
    with opened(DatasetConfig(workers=3), 0) as workers:
        many = np.tile(rows, 20)
        assert np.array_equal(
            workers.reader(data.train).read(0, many)["image_encoded"], data.train.read(many)["image_encoded"]
        )
    small = read("made/1.0.0", test=None, image_size=[3, 4], channels=1)
    assert small.specs["image_encoded"].shape == (3, 4, 1)


def test_splits_of_tfds_without_train_are_not_trained_on() -> None:
    for split in ("validation", "test"):
        write(f"made/made-{split}.array_record-00000-of-00001", records_of(made(20)))
    with pytest.raises(ConfigError, match=r"dataset.path=made: has the splits test, validation, but no split train"):
        read("made")


GOOD = {"a": 1, "b": [1.0, 2.0], "c": b"red"}


@pytest.mark.parametrize(
    ("second", "keys", "problem"),
    [
        ({**GOOD, "a": [1, 2]}, {}, "record 2, a has 2 values, but one in the first record"),
        ({**GOOD, "a": 1.5}, {}, "record 2, a is float_list, but int64_list in the first record"),
        ({"a": 1, "c": b"red"}, {}, "record 2, b is missing, but float_list in the first record"),
        ({**GOOD, "b": [1.0]}, {}, "one length"),
        ({**GOOD, "c": b"\xff\xfe"}, {}, "c of records 1 to 2 is not UTF-8"),
        (None, {}, "record 2 is not a tf.train.Example"),
        ({}, {}, "record 2 has no features"),
        (GOOD, {"features": ["nope"]}, "dataset.features=nope: unknown column (the columns: a, b, c)"),
    ],
)
def test_records_that_differ_are_errors_that_name_them(
    second: dict[str, object] | None, keys: dict[str, object], problem: str
) -> None:
    content = b"\xff\xff\xff" if second is None else record(second)
    write("a.array_record", [record(GOOD), content])
    with pytest.raises((DataError, ConfigError)) as error:
        read("a.array_record", **keys)
    assert problem in str(error.value)
    assert "a.array_record" in str(error.value) or keys


def test_features_without_an_array_are_errors_only_if_they_are_read() -> None:
    write("a.array_record", [record({"a": row, "words": [b"x", b"y"]}) for row in range(4)])
    with pytest.raises(DataError, match="words has no values, or several strings"):
        read("a.array_record")
    assert read("a.array_record", features=["a"], test="train").train.size == 4


def test_files_that_are_none_are_errors(tmp_path: Path) -> None:
    (tmp_path / "broken.array_record").write_bytes(b"something else")
    with pytest.raises(DataError, match=r"broken.array_record can't be read"):
        read("broken.array_record")
    write("empty.array_record", [])
    with pytest.raises(DataError, match=r"empty.array_record has no records"):
        read("empty.array_record")
    (tmp_path / "table.csv").write_text("a\n1\n")
    with pytest.raises(ConfigError, match=r"dataset.path=table.csv: must be an .array_record file"):
        read("table.csv")
    with pytest.raises(ConfigError, match=r"dataset.path=nowhere: .* does not exist"):
        read("nowhere")


WRITE_WITH_TFDS = """
import numpy as np
import tensorflow as tf
import tensorflow_datasets as tfds

class Made(tfds.core.GeneratorBasedBuilder):
    VERSION = tfds.core.Version("1.0.0")

    def _info(self):
        features = {"image": tfds.features.Image(shape=(6, 5, 3)), "label": tfds.features.ClassLabel(names=["a", "b"]),
                    "vector": tfds.features.Tensor(shape=(4,), dtype=tf.float32)}
        return tfds.core.DatasetInfo(builder=self, features=tfds.features.FeaturesDict(features))

    def _split_generators(self, manager):
        return {"train": self._generate_examples(30), "test": self._generate_examples(9)}

    def _generate_examples(self, count):
        rng = np.random.default_rng(count)
        for row in range(count):
            yield row, {"image": rng.integers(0, 256, (6, 5, 3), np.uint8), "label": row % 2,
                        "vector": rng.normal(size=4).astype(np.float32)}

builder = Made(data_dir="data", file_format="array_record")
builder.download_and_prepare()
for split in ("train", "test"):
    examples = list(builder.as_data_source(split))
    np.savez(split + ".npz", **{name: np.stack([example[name] for example in examples]) for name in examples[0]})
"""


@pytest.mark.nightly
def test_files_of_tfds_have_the_examples_that_tfds_reads(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-c", WRITE_WITH_TFDS], cwd=tmp_path, check=True, capture_output=True)
    data = read("data/made/1.0.0", test=None)
    assert data.specs["label"].names == ("a", "b")
    for split, source in {"train": data.train, "test": data.test}.items():
        expected = np.load(f"{split}.npz")
        found = source.read(np.arange(source.size))
        for name in expected.files:
            assert np.array_equal(found[name], expected[name]), name

from __future__ import annotations

import dataclasses
import importlib.machinery
import importlib.util
from pathlib import Path

import numpy as np
import pytest

from runner.config import search_path
from runner.config.schema import DatasetConfig
from runner.config.search_path import options_in
from runner.data import selection
from runner.data.base import ArraySource, ArraySpec, FullDataset
from runner.data.loading import load
from runner.errors import ConfigError, DataError
from tests.data.conftest import ROOT


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """100 examples of train, whose pixels state their row, and 30 of test."""
    for split, first, count in (("train", 0, 100), ("test", 100, 30)):
        rows = np.arange(first, first + count, dtype=np.uint8)
        images = np.broadcast_to(rows[:, None, None, None], (count, 4, 4, 1))
        np.savez(tmp_path / f"{split}.npz", image=images, label=(rows - first).astype(np.int32) % 10)
    return tmp_path


def config(path: Path, **keys: object) -> DatasetConfig:
    return DatasetConfig(name="arrays", path=str(path), **keys)  # type: ignore[arg-type]


def test_selections_hold_the_examples_that_their_expressions_name(files: Path) -> None:
    dataset = load(config(files, train="train[10:20]+test[-2:]", test="test[:50%]"))
    assert dataset.train.arrays["image"][:, 0, 0, 0].tolist() == [*range(10, 20), 128, 129]
    assert dataset.train.arrays["label"].tolist() == [*range(10), 8, 9]
    assert dataset.test.arrays["image"][:, 0, 0, 0].tolist() == list(range(100, 115))
    assert dataset.train.arrays["image"].dtype == np.uint8
    assert dataset.train.arrays["label"].dtype == np.int32


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"train": "train[5]"}, "dataset.train=train[5]:"),
        ({"test": "valid"}, "there is no split valid, the splits are train, test; set dataset.test=test"),
    ],
)
def test_values_that_cannot_work_are_rejected_in_one_line(files: Path, keys: dict[str, object], said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load(config(files, **keys))
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_examples_whose_labels_are_withheld_are_rejected() -> None:
    label = np.array([0, 1, -1], np.int32)
    train = ArraySource({"label": label}, {"label": ArraySpec((), "int32", names=("ant", "bee"))})
    full = FullDataset("insects", "", {"train": train}, "", "a test")
    keys = {"name": "tfds", "test": "train[:1]"}
    assert selection.make_dataset(full, DatasetConfig(train="train[:2]", **keys), 0).train.size == 2  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="labels are withheld"):
        selection.make_dataset(full, DatasetConfig(**keys), 0)  # type: ignore[arg-type]


def test_digits_enlarged_past_memory_are_rejected_before_they_are_made() -> None:
    with pytest.raises(ConfigError, match=r"dataset\.image_size=\[100000,100000\]: must be at most 1545 by 1545"):
        load(DatasetConfig(name="digits", image_size=[100_000, 100_000]))


def test_digits_are_cut_the_same_way_each_time_without_overlap() -> None:
    first, second = load(DatasetConfig(name="digits")), load(DatasetConfig(name="digits", train="train[:100]"))
    assert (first.train.size, first.test.size) == (1437, 360)
    assert first.train.arrays["image"].shape[1:] == (8, 8, 1)
    assert first.train.arrays["image"].max() == 255
    assert first.digest == second.digest
    assert np.array_equal(first.train.arrays["image"][:100], second.train.arrays["image"])
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    original = sorted((*image, label) for image, label in zip(images.astype(int).tolist(), labels, strict=True))
    pixels = np.concatenate([first.train.arrays["image"], first.test.arrays["image"]]).reshape(-1, 64)
    targets = np.concatenate([first.train.arrays["label"], first.test.arrays["label"]])
    restored = np.rint(pixels / 255 * 16).astype(int).tolist()
    assert sorted((*image, label) for image, label in zip(restored, targets, strict=True)) == original


def test_digits_that_scikit_learn_does_not_contain_are_an_error_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "sklearn"
    (package / "datasets" / "data").mkdir(parents=True)
    origin = str(package / "__init__.py")
    spec = importlib.machinery.ModuleSpec("sklearn", None, origin=origin)
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: spec)
    with pytest.raises(DataError, match=r"dataset=digits: .*digits\.csv\.gz can't be read \(.*No such file"):
        load(DatasetConfig(name="digits"))
    (package / "datasets" / "data" / "digits.csv.gz").write_bytes(b"no archive")
    with pytest.raises(DataError, match=r"can't be read .*--force-reinstall"):
        load(DatasetConfig(name="digits"))
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with pytest.raises(DataError, match="needs scikit-learn, which is not installed"):
        load(DatasetConfig(name="digits"))


# `synthetic` is a preset of `custom` with keys of its own callable.
PRESETS = [name for name in options_in(ROOT / "conf" / "dataset") if name != "synthetic"]


@pytest.mark.parametrize("name", PRESETS)
def test_presets_set_keys_of_the_schema_and_comment_on_each(name: str) -> None:
    path = ROOT / "conf" / "dataset" / f"{name}.yaml"
    preset = search_path.content_of(f"dataset/{name}")
    known = {field.name for field in dataclasses.fields(DatasetConfig)} - {"target", "options"} | {"_target_"}
    assert set(preset) <= known
    own = name in ("arrays", "image_folder", "custom", "parquet", "array_record", "huggingface", "mixture")
    text = name in ("text", "shakespeare", "pydoc")
    expected: dict[str, object] = {"name": "" if name == "tfds" else name, "test": None if own else "test"}
    expected["standardize"] = name in ("arrays", "parquet")
    expected["batch_size"] = 32 if text else 64 if own or name == "digits" else 128
    if text:
        documents = "joined" if name == "shakespeare" else "apart"
        expected |= {"tokenizer": "bytes", "sequence_length": 256, "documents": documents, "eval_batch_size": 64}
        expected["column"] = "text" if name == "text" else None
    plain = DatasetConfig()
    for key, value in preset.items():
        if key not in ("path", "_target_", "parts"):
            assert value == expected.get(key, getattr(plain, key)), key
    lines = path.read_text("utf-8").splitlines()
    assert lines[1].startswith(f"#   python -m runner dataset={name}")
    assert lines[2].startswith("defaults: [_")
    assert all(" # " in line for line in lines[3:])


def test_digits_are_enlarged_by_repeating_pixels() -> None:
    small = load(DatasetConfig(name="digits")).train.arrays["image"]
    large = load(DatasetConfig(name="digits", image_size=[16, 28])).train.arrays["image"]
    assert large.shape == (len(small), 16, 28, 1)
    assert (large[:, ::2, [0, 4, 7, 11, 14, 18, 21, 25]] == small).all()
    assert (large[:, 0::2] == large[:, 1::2]).all()

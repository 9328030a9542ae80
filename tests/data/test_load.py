from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from runner.config.schema import DatasetConfig
from runner.data import selection
from runner.data.base import ArraySource, ArraySpec, FullDataset
from runner.data.loading import load
from runner.errors import ConfigError


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


def test_digits_are_enlarged_by_repeating_pixels() -> None:
    small = load(DatasetConfig(name="digits")).train.arrays["image"]
    large = load(DatasetConfig(name="digits", image_size=[16, 28])).train.arrays["image"]
    assert large.shape == (len(small), 16, 28, 1)
    assert (large[:, ::2, [0, 4, 7, 11, 14, 18, 21, 25]] == small).all()
    assert (large[:, 0::2] == large[:, 1::2]).all()

import numpy as np
import pytest

from runner.config.schema import DatasetConfig
from runner.data.loading import load
from runner.errors import ConfigError


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

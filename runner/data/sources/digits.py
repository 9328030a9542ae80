"""`digits`: 1,797 handwritten digits of 8x8 pixels, part of the scikit-learn package, so without a network."""

from __future__ import annotations

import gzip
import importlib.util
import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from runner.config.schema_data import DatasetConfig
from runner.data.base import IMAGE_DIMS, Array, ArraySource, ArraySpec, Encoding, FullDataset
from runner.data.digest import digest
from runner.errors import DataError, invalid

# The published data has no test split. A permutation by this seed makes the same one for every run.
_SEED = 0
_TRAIN_EXAMPLES = 1437
_SIDE = 8
# Gray levels of the file, from 0.
_LEVELS = 16
# Limit for enlarged images, which are made as one array in RAM.
_MAX_BYTES = 4 << 30
# In scikit-learn's package; `sklearn.datasets.load_digits` reads it.
_FILE = Path("datasets", "data", "digits.csv.gz")


def load(config: DatasetConfig, encoding: Encoding | None = None) -> FullDataset:
    """Loads 1,437 examples of `train` and 360 of `test`; pixels of 0 to 16 become uint8 (height, width, 1) to 255.

    `dataset.image_size` enlarges them by repeating pixels.
    """
    del encoding
    images, labels = _read()
    order = np.random.default_rng(_SEED).permutation(len(labels))
    pixels = np.rint(images[order].reshape(-1, _SIDE, _SIDE, 1) * (255 / _LEVELS)).astype(np.uint8)
    if config.image_size is not None:
        pixels = _enlarged(pixels, config.image_size)
    targets = labels[order].astype(np.int32)
    specs = {
        "image": ArraySpec(pixels.shape[1:], "uint8", IMAGE_DIMS),
        "label": ArraySpec((), "int32", names=tuple(map(str, range(10)))),
    }
    train: dict[str, Array] = {"image": pixels[:_TRAIN_EXAMPLES], "label": targets[:_TRAIN_EXAMPLES]}
    test: dict[str, Array] = {"image": pixels[_TRAIN_EXAMPLES:], "label": targets[_TRAIN_EXAMPLES:]}
    return FullDataset(
        name="digits",
        version="1.0.0",
        splits={"train": ArraySource(train, specs), "test": ArraySource(test, specs)},
        digest=digest([("train", train), ("test", test)]),
        source="scikit-learn",
    )


def _read() -> tuple[Array, Array]:
    """Returns images (1797, 64) of 0 to 16, and labels (1797,), as scikit-learn does.

    Its package is not imported: scikit-learn and SciPy take a second of CPU time.
    """
    spec = importlib.util.find_spec("sklearn")
    if spec is None or spec.origin is None:
        raise DataError("dataset=digits: needs scikit-learn, which is not installed; pip install scikit-learn")
    path = Path(spec.origin).parent / _FILE
    try:
        with gzip.open(path, "rt", encoding="ascii") as file:
            table = np.loadtxt(file, delimiter=",")
    except (OSError, EOFError, ValueError) as error:
        raise DataError(
            f"dataset=digits: {path} can't be read ({error}); pip install --force-reinstall scikit-learn"
        ) from error
    return table[:, :-1], table[:, -1].astype(np.int64)


def _enlarged(pixels: Array, image_size: Sequence[int]) -> Array:
    height, width = image_size
    largest_side = math.isqrt(_MAX_BYTES // len(pixels))
    if height * width > largest_side * largest_side:
        problem = f"must be at most {largest_side} by {largest_side}, with which the digits take 4 GiB"
        raise invalid("dataset.image_size", list(image_size), problem=problem, fix="set dataset.image_size=[64,64]")
    rows = np.arange(height) * _SIDE // height
    columns = np.arange(width) * _SIDE // width
    return np.ascontiguousarray(pixels[:, rows][:, :, columns])

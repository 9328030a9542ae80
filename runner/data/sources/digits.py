"""`digits`: the 1,797 handwritten digits of 8x8 pixels that scikit-learn carries, so no network is needed."""

from __future__ import annotations

import gzip
import importlib.util
import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from runner.config.schema_data import DatasetConfig
from runner.data.base import Array, ArraySource, ArraySpec, Encoding
from runner.data.cut import Whole
from runner.data.digest import digest
from runner.errors import DataError, invalid

_SEED = 0
_TRAIN = 1437
_MOST_BYTES = 4 << 30
_FILE = Path("datasets", "data", "digits.csv.gz")  # in scikit-learn's package; `sklearn.datasets.load_digits` reads it


def load(config: DatasetConfig, encoding: Encoding | None = None) -> Whole:
    """Loads the digits.

    A permutation by seed 0, always the same, cuts them into `train`, 1,437 examples, and `test`, 360. Pixels of 0 to
    16 become uint8 (height, width, 1) of 0 to 255.

    Args:
      config: of which `image_size` enlarges them, by repeating pixels; null: 8x8 as they are.
      encoding: without effect: their labels are always the same.

    Returns:
      Arrays `image` and `label` of both splits.

    Raises:
      ConfigError: images of that size don't fit into memory.
      DataError: scikit-learn is not installed, or its package does not contain the digits.
    """
    del encoding
    images, labels = _read()
    order = np.random.default_rng(_SEED).permutation(len(labels))
    pixels = np.rint(images[order].reshape(-1, 8, 8, 1) * (255 / 16)).astype(np.uint8)
    if config.image_size is not None:
        _check_size(config.image_size, len(labels))
        rows, columns = (np.arange(size) * 8 // size for size in config.image_size)
        pixels = np.ascontiguousarray(pixels[:, rows][:, :, columns])
    targets = labels[order].astype(np.int32)
    specs = {
        "image": ArraySpec(pixels.shape[1:], "uint8", ("height", "width", "channel")),
        "label": ArraySpec((), "int32", names=tuple(str(digit) for digit in range(10))),
    }
    splits = {
        "train": ArraySource({"image": pixels[:_TRAIN], "label": targets[:_TRAIN]}, specs),
        "test": ArraySource({"image": pixels[_TRAIN:], "label": targets[_TRAIN:]}, specs),
    }
    return Whole(
        name="digits",
        version="1.0.0",
        splits=splits,
        digest=digest((name, split.arrays) for name, split in splits.items()),
        source="scikit-learn",
    )


def _read() -> tuple[Array, Array]:
    """Returns images (1797, 64) of 0 to 16, and labels, as `sklearn.datasets.load_digits` does.

    The file is read from the package, which is not imported: scikit-learn and SciPy take a second of CPU time.
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


def _check_size(image_size: Sequence[int], examples: int) -> None:
    """Refuses a size at which the images would not fit into memory, where they are made whole."""
    most = math.isqrt(_MOST_BYTES // examples)
    if math.prod(image_size) > most * most:
        raise invalid(
            "dataset.image_size",
            list(image_size),
            problem=f"at most {most} by {most}, by which the {examples:,} digits take 4 GiB",
            fix="set dataset.image_size=[64,64]",
        )

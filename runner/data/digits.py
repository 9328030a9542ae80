"""`digits`: the 1,797 handwritten digits of 8x8 pixels that scikit-learn carries, so no network is needed."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from runner.config.errors import refuse
from runner.data.arrays import Dataset, Split, digest
from runner.data.cache import ranges
from runner.data.splits import Slice

_SEED = 0
_TRAIN = 1437
_MOST_BYTES = 4 << 30


def load_digits(train: Sequence[Slice], evaluate: Sequence[Slice], image_size: Sequence[int] | None = None) -> Dataset:
    """Loads the digits.

    A permutation by seed 0, always the same, cuts them into `train`, 1,437 examples, and `test`, 360. Pixels of 0 to
    16 become uint8 (height, width, 1) of 0 to 255.

    Args:
      train: terms of `dataset.train`.
      evaluate: terms of `dataset.eval`.
      image_size: height and width to enlarge to, by repeating pixels; null: 8x8 as they are.

    Returns:
      The dataset.

    Raises:
      ConfigError: a selection does not fit the splits, or images of that size don't fit into memory.
    """
    from sklearn.datasets import load_digits as sklearn_digits

    images, labels = sklearn_digits(return_X_y=True)
    order = np.random.default_rng(_SEED).permutation(len(labels))
    pixels = np.rint(images[order].reshape(-1, 8, 8, 1) * (255 / 16)).astype(np.uint8)
    if image_size is not None:
        _check_size(image_size, len(labels))
        rows, columns = (np.arange(size) * 8 // size for size in image_size)
        pixels = np.ascontiguousarray(pixels[:, rows][:, :, columns])
    targets = labels[order].astype(np.int32)
    whole = {"train": Split(pixels[:_TRAIN], targets[:_TRAIN]), "test": Split(pixels[_TRAIN:], targets[_TRAIN:])}
    return Dataset(
        name="digits",
        version="1.0.0",
        train=_select("train", train, whole),
        eval=_select("eval", evaluate, whole),
        num_classes=10,
        class_names=tuple(str(digit) for digit in range(10)),
        digest=digest((name, split.images, split.labels) for name, split in whole.items()),
        source="scikit-learn",
    )


def _check_size(image_size: Sequence[int], examples: int) -> None:
    """Refuses a size at which the images would not fit into memory, where they are made whole."""
    most = math.isqrt(_MOST_BYTES // examples)
    if math.prod(image_size) > most * most:
        raise refuse(
            "dataset.image_size",
            list(image_size),
            allowed=f"at most {most} by {most}, by which the {examples:,} digits take 4 GiB",
            mend="set dataset.image_size=[64,64]",
        )


def _select(key: str, terms: Sequence[Slice], whole: dict[str, Split]) -> Split:
    cuts = ranges(key, terms, {name: split.size for name, split in whole.items()})
    return Split(
        np.concatenate([whole[name].images[start:stop] for name, start, stop in cuts]),
        np.concatenate([whole[name].labels[start:stop] for name, start, stop in cuts]),
    )

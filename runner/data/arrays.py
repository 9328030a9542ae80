"""What a dataset is once it is decoded: arrays of images and labels."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

Images: TypeAlias = npt.NDArray[np.uint8]
Labels: TypeAlias = npt.NDArray[np.int32]

_CHUNK_BYTES = 1 << 24


@dataclass(frozen=True, eq=False)
class Split:
    """Examples to train or to evaluate on.

    Attributes:
      images: uint8 (N, H, W, C), in RAM or mapped from disk, read-only.
      labels: int32 (N,), each within 0 and the number of classes.
    """

    images: Images
    labels: Labels

    @property
    def size(self) -> int:
        """Number of examples."""
        return len(self.labels)


@dataclass(frozen=True, eq=False)
class Dataset:
    """A dataset, decoded and cut as the config says.

    Attributes:
      name: the builder's name with its config, as `mnist` or `emnist/letters`.
      version: the builder's version.
      train: what `dataset.train` selects.
      eval: what `dataset.eval` selects.
      num_classes: number of labels.
      class_names: their names, in label order.
      digest: sha256 (hex) of all the dataset's decoded splits, whatever `train` and `eval` select.
      source: where the data came from, in words.
    """

    name: str
    version: str
    train: Split
    eval: Split
    num_classes: int
    class_names: tuple[str, ...]
    digest: str
    source: str


def digest(splits: Iterable[tuple[str, Images, Labels]]) -> str:
    """Hashes decoded splits: names, shapes and bytes.

    Args:
      splits: `(name, images, labels)`, in any order, hashed in the order of the names.

    Returns:
      sha256 as hex. It depends on the order of the examples and not on the machine.
    """
    total = hashlib.sha256()
    for name, images, labels in sorted(splits, key=lambda entry: entry[0]):
        total.update(f"{name} {images.shape}".encode())
        rows = max(1, _CHUNK_BYTES // max(1, images[:1].nbytes))
        for start in range(0, len(images), rows):
            total.update(np.ascontiguousarray(images[start : start + rows]).data)
        total.update(labels.astype("<i4").data)
    return total.hexdigest()

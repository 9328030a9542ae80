"""What identifies data: a sha256 of its content, which depends on the order of the examples and not on the machine."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping

import numpy as np

from runner.data.base import Array

_CHUNK_BYTES = 1 << 24
_IMAGE_AND_LABEL = ["image", "label"]  # hashed without their names, as in every run recorded before others were known


def digest(splits: Iterable[tuple[str, Mapping[str, Array]]]) -> str:
    """Hashes splits: names, shapes and bytes.

    Args:
      splits: (name, its arrays), in any order; hashed in the order of the names.

    Returns:
      sha256 as hex.
    """
    total = hashlib.sha256()
    for split, arrays in sorted(splits, key=lambda entry: entry[0]):
        plain = list(arrays) == _IMAGE_AND_LABEL
        for place, (name, array) in enumerate(arrays.items()):
            if not plain:
                total.update(f"{split} {name} {array.dtype.str} {array.shape}".encode())
            elif place == 0:
                total.update(f"{split} {array.shape}".encode())
            rows = max(1, _CHUNK_BYTES // max(1, array[:1].nbytes))
            for start in range(0, len(array), rows):
                total.update(np.ascontiguousarray(array[start : start + rows]).data)
    return total.hexdigest()

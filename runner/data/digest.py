"""Digest of arrays: a sha256 of their content.

It depends on the order of the examples and not on the machine.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping

import numpy as np

from runner.data.base import Array

# Bytes per update of the hash: a memory-mapped array is then never in RAM as a whole.
_CHUNK_BYTES = 1 << 24
# Datasets of exactly these arrays are hashed without their names. The first releases knew no others, and their
# recorded runs must keep their digests.
_UNNAMED_ARRAYS = ["image", "label"]


def digest(splits: Iterable[tuple[str, Mapping[str, Array]]]) -> str:
    """Hashes splits: names, dtypes, shapes and bytes.

    Args:
      splits: (name, its arrays), in any order; hashed in the order of the names.

    Returns:
      sha256 as hex.
    """
    total = hashlib.sha256()
    for split, arrays in sorted(splits, key=lambda entry: entry[0]):
        is_unnamed = list(arrays) == _UNNAMED_ARRAYS
        for index, (name, array) in enumerate(arrays.items()):
            if not is_unnamed:
                total.update(f"{split} {name} {array.dtype.str} {array.shape}".encode())
            elif index == 0:
                total.update(f"{split} {array.shape}".encode())
            row_bytes = max(1, array[:1].nbytes)
            rows = max(1, _CHUNK_BYTES // row_bytes)
            for start in range(0, len(array), rows):
                total.update(np.ascontiguousarray(array[start : start + rows]).data)
    return total.hexdigest()

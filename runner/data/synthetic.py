"""Random data of any size, for plans, smoke tests and measurements of speed.

`dataset=synthetic` reads rows of tokens from it: nothing is loaded or kept, each row is drawn when it is read.
"""

from __future__ import annotations

import numpy as np

from runner.data.base import Array


class Tokens:
    """Rows of uniformly random tokens; the label of a token is the next one."""

    def __init__(self, length: int, vocabulary: int, size: int = 1 << 20) -> None:
        self._length = length
        self._vocabulary = vocabulary
        self._size = size

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, row: int) -> dict[str, Array]:
        """Returns `tokens` and `label`, int32 (length,), a function of the row's number alone."""
        drawn = np.random.default_rng(row).integers(self._vocabulary, size=self._length + 1, dtype=np.int32)
        return {"tokens": drawn[:-1], "label": drawn[1:]}

"""The logits of an evaluation, example by example, read while the next batches are computed."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np

from runner.engine.base import Array

_IN_FLIGHT = 1  # a batch is read when the next one has been started


class LogitRows:
    """Gathers the logits of examples of weight 1, in order.

    Args:
      read: gives the whole host array (B, C) of logits that are on the devices.
    """

    def __init__(self, read: Callable[[Any], Array]) -> None:
        self._read = read
        self._pending: deque[tuple[Any, Array]] = deque()
        self._rows: list[Array] = []

    def add(self, logits: Any, weights: Array) -> None:
        """Takes a batch that was started.

        Args:
          logits: (B, C), on the devices.
          weights: (B,), 0 for padding.
        """
        self._pending.append((logits, weights > 0))
        while len(self._pending) > _IN_FLIGHT:
            self._read_one()

    def whole(self, classes: int) -> Array:
        """Returns float32 (examples, classes)."""
        while self._pending:
            self._read_one()
        return np.concatenate([np.zeros((0, classes), np.float32), *self._rows])

    def _read_one(self) -> None:
        logits, kept = self._pending.popleft()
        self._rows.append(np.asarray(self._read(logits), np.float32)[kept])

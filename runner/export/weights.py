"""The weights that an export uses, read from a checkpoint array by array."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from runner.data.base import Array
from runner.optim.paths import ema_path, is_variable


class WeightsInUse(Mapping[str, Array]):
    """The weights that evaluations use: their exponential moving averages if the run keeps them, else the weights.

    Each array is read when it is asked for, so that those of a large model are never in memory together.
    """

    def __init__(self, state: Mapping[str, Array]) -> None:
        """Takes an engine's `state` or a checkpoint."""
        self._state = state
        # Path of a variable -> path of the array that is used.
        self._paths: dict[str, str] = {}
        paths = set(state)
        for path in state:
            if is_variable(path):
                average = ema_path(path)
                self._paths[path] = average if average in paths else path

    def __getitem__(self, path: str) -> Array:
        """Returns a variable's whole array."""
        return self._state[self._paths[path]]

    def __iter__(self) -> Iterator[str]:
        return iter(self._paths)

    def __len__(self) -> int:
        return len(self._paths)

"""The weights that an export uses, read from a checkpoint array by array."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from runner.data.base import Array
from runner.optim.paths import ema_path, is_variable


class WeightsInUse(Mapping[str, Array]):
    """What evaluations compute with: the averages of the weights where the run keeps them, else the weights.

    Each array is read when it is asked for, so that a large model's are not there together.
    """

    def __init__(self, state: Mapping[str, Array]) -> None:
        """Takes what an engine's `state` or a checkpoint holds."""
        paths = set(state)
        self._state = state
        self._paths = {
            path: ema_path(path) if ema_path(path) in paths else path for path in state if is_variable(path)
        }

    def __getitem__(self, path: str) -> Array:
        """Returns a variable's whole array."""
        return self._state[self._paths[path]]

    def __iter__(self) -> Iterator[str]:
        return iter(self._paths)

    def __len__(self) -> int:
        return len(self._paths)

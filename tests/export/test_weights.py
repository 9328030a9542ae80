from collections.abc import Iterator, Mapping

import numpy as np

from runner.cli.export import WeightsInUse
from runner.data.base import Array
from runner.layout.paths import ema_path, slot_path


class Noted(Mapping[str, Array]):
    """A state that notes what is read of it, as a checkpoint reads an array from its files."""

    def __init__(self, *paths: str) -> None:
        self.paths = paths
        self.read: list[str] = []

    def __getitem__(self, path: str) -> Array:
        self.read.append(path)
        return np.zeros(self.paths.index(path))

    def __contains__(self, path: object) -> bool:
        return path in self.paths

    def __iter__(self) -> Iterator[str]:
        return iter(self.paths)

    def __len__(self) -> int:
        return len(self.paths)


def test_averages_replace_weights_and_each_array_is_read_when_it_is_asked_for() -> None:
    state = Noted("a/kernel", "b/moving_mean", ema_path("a/kernel"), slot_path("a/kernel", "momentum"))
    weights = WeightsInUse(state)
    assert (list(weights), len(weights)) == (["a/kernel", "b/moving_mean"], 2)
    assert state.read == []
    assert weights["a/kernel"].shape == (2,)
    assert weights["b/moving_mean"].shape == (1,)
    assert state.read == [ema_path("a/kernel"), "b/moving_mean"]

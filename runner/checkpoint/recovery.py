"""What a training run that is recorded already has, and the versions of what computes it."""

from __future__ import annotations

import platform
from collections.abc import Mapping

from runner.checkpoint.reading import Checkpoint
from runner.engine import registry
from runner.host.libraries import installed
from runner.tracking import Tracker

_LIBRARIES = ("runner", *registry.distributions(), "numpy")


class NewPoints:
    """Logs only the points that a run does not have yet.

    A resumed run computes the points after its last checkpoint again, and its history before that is logged once more,
    because some of it may have been on its way when the process died. A run that the user resumed from an earlier step
    has points of steps that it trains again: there,
    a point counts as logged only if its value is the same. So has a run that was lost before its first checkpoint.
    """

    def __init__(
        self, tracker: Tracker, checkpoint: Checkpoint | None, *, repeats_steps: bool = False, continues: bool = False
    ) -> None:
        """Reads the points that the run has.

        `repeats_steps`: the run trains steps again that it has logged. `continues`: an earlier attempt may have logged
        points without a checkpoint.
        """
        self._tracker = tracker
        self._stored: dict[str, dict[int, float]] = {}
        # Up to this step, a logged point may be of a history that the run has left.
        self._last_repeated = 0
        if checkpoint is not None or continues:
            self._stored = tracker.logged()
        # Without a checkpoint the run trains all its steps again, those that the earlier attempt has logged too.
        if repeats_steps or (continues and checkpoint is None):
            for points in self._stored.values():
                self._last_repeated = max(self._last_repeated, max(points, default=0))

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Logs the values that the run has no point of at this step."""
        new = {key: value for key, value in values.items() if not self._is_stored(step, key, value)}
        if new:
            self._tracker.log_metrics(step, new)

    def _is_stored(self, step: int, key: str, value: float) -> bool:
        stored = self._stored.get(key, {})
        return step in stored and (step > self._last_repeated or stored[step] == value)

    def log_changed(self, step: int, values: Mapping[str, float]) -> None:
        """Logs the values that differ from the last point of their metric: metrics that depend on the config only."""
        changed: dict[str, float] = {}
        for key, value in values.items():
            points = self._stored.get(key)
            if not points or points[max(points)] != value:
                changed[key] = value
        self.log(step, changed)


def versions() -> dict[str, str]:
    """Returns the versions of Python and of the libraries that compute."""
    return {"python": platform.python_version(), **installed(_LIBRARIES)}

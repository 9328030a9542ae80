"""The points that a resumed run has not logged yet."""

from __future__ import annotations

from collections.abc import Mapping

from runner.tracking.base import Tracker


class NewPoints:
    """Logs only the points that a run does not have yet.

    A resumed run computes the points after its last checkpoint again, and its history before that is logged once more,
    because some of it may have been on its way when the process died. A run that the user resumed from an earlier step
    has points of steps that it trains again: there, a point counts as logged only if its value is the same. So has a
    run that was lost before its first checkpoint.
    """

    def __init__(self, tracker: Tracker, *, continues: bool = False, repeats_steps: bool = False) -> None:
        """Reads the points that the run has, if it `continues`; `repeats_steps`: it trains steps of them again."""
        self._tracker = tracker
        self._stored = tracker.logged() if continues else {}
        # Up to this step, a logged point may be of a history that the run has left.
        self._last_repeated = 0
        if repeats_steps:
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

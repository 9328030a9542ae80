"""Calls of Keras's callbacks, at the points at which `fit` calls them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from runner.cluster.team import current
from runner.config import import_path
from runner.engine.lengths import RunLength
from runner.engine.listeners import Listener, NoModel
from runner.errors import EngineError
from runner.task.base import TASK_LOSS, Evaluation
from runner.task.metrics import prefixed


class Callbacks:
    """Calls callbacks as `fit` does with `steps_per_execution=interval`; only process 0 has any.

    With `validates`, the logs of an epoch have its evaluation.
    """

    def __init__(self, listeners: Sequence[Listener] = (), interval: int = 1, *, validates: bool = True) -> None:
        self._listeners = listeners
        self._interval = interval
        self._validates = validates
        self._model = NoModel()
        self._logs: dict[str, float] = {}

    def begin(self, length: RunLength) -> None:
        """Begins a run, whose periods are the callbacks' epochs."""
        self._period = length.period
        epochs = math.ceil(length.total / length.period)
        self._call("set_params", {"verbose": 0, "epochs": epochs, "steps": length.period})
        self._call("set_model", self._model)
        self._call("on_train_begin", {})

    def begin_epoch(self, first: int, step: int, end: int) -> None:
        """Begins an epoch of the run's steps from `first` to `end`, or resumes it after `step`."""
        self._first = first
        self._end = end
        self._call("on_epoch_begin", first // self._period, {})
        self._begin_batch(step)

    def _begin_batch(self, step: int) -> None:
        if step < self._end:
            self._call("on_train_batch_begin", step - self._first, logs={})

    def stepped(self, step: int, means: Callable[[], Mapping[str, float]]) -> None:
        """Takes what returns the means of the epoch so far, after each step that was read."""
        done = step - self._first
        if self._listeners and (done % self._interval == 0 or step == self._end):
            self._call("on_train_batch_end", done - 1, logs=dict(sorted(means().items())))
            self._begin_batch(step)

    def end_epoch(self, means: Mapping[str, float], evaluation: Evaluation | None) -> None:
        """Ends an epoch, with its evaluation if one was due."""
        logs = dict(means)
        if evaluation is not None and self._validates:
            logs |= prefixed("val_", evaluation.metrics)
            logs.pop(f"val_{TASK_LOSS}", None)  # which Keras has not
        # Sorted, as Keras does.
        self._logs = dict(sorted(logs.items()))
        self._call("on_epoch_end", self._first // self._period, self._logs)

    def stop(self) -> bool:
        """Returns, in all processes, whether a callback has set `model.stop_training`."""
        return current().broadcast(f"stop after {self._end}", lambda: bool(self._model.stop_training))

    def end(self) -> None:
        """Ends a run that was trained to its end, or stopped."""
        self._call("on_train_end", self._logs)

    def _call(self, event: str, *arguments: Any, **named: Any) -> None:
        listeners = self._listeners
        # After an error none is called any more, though the steps before it are still read.
        self._listeners = ()
        for key, callback in listeners:
            try:
                getattr(callback, event)(*arguments, **named)
            except Exception as error:  # A user's class may raise anything.
                what = f"{type(callback).__name__}.{event}"
                raise EngineError(f"{key}: {what} raised {import_path.raised(error)}") from error
        self._listeners = listeners

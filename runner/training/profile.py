"""A trace of a few training steps: when it begins and ends. The engine makes it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path

from runner.config.schema import RunConfig
from runner.config.schema_trainer import ProfileConfig
from runner.errors import invalid

Trace = Callable[[Path], AbstractContextManager[None]]
FOLDER = "profile"


class Profiler:
    """Traces the steps that `trainer.profile` names, once; device calls begin and end with them.

    Attributes:
      folder: holds the trace, in the form that TensorBoard reads.
    """

    def __init__(self, config: ProfileConfig, trace: Trace, folder: Path) -> None:
        """Takes what makes a trace of what runs in its context."""
        self.folder = folder / FOLDER
        self._start = config.start
        self._steps = config.steps
        self._trace = trace
        self._open = ExitStack()
        self._running = self._done = False

    def steps_left(self, step: int) -> int | None:
        """Returns after how many more steps a call has to end because the trace begins or ends; None: unbound."""
        if self._start is None or step >= self._start + self._steps:
            return None
        return self._start - step if step < self._start else self._start + self._steps - step

    def before_call(self, step: int, wait: Callable[[], None]) -> None:
        """Begins the trace where its first step is next.

        Args:
          step: steps done.
          wait: waits for the devices, so that nothing of earlier steps is traced.
        """
        if step == self._start and not self._done:
            wait()
            self._open.enter_context(self._trace(self.folder))
            self._running = True

    def after_call(self, step: int, wait: Callable[[], None]) -> None:
        """Ends the trace where its last step is done.

        Args:
          step: steps done.
          wait: waits for the devices, so that all of the last step is traced.
        """
        if self._running and self._start is not None and step >= self._start + self._steps:
            wait()
            self.close()

    def close(self) -> None:
        """Ends a trace that is still running."""
        self._done = self._done or self._running
        self._running = False
        self._open.close()


def check(config: RunConfig, total: int) -> None:
    """Checks that a run does the steps that are to be traced; one that goes on may have them behind it.

    Args:
      config: checked.
      total: steps of the whole training.

    Raises:
      ConfigError: it ends before.
    """
    start = config.trainer.profile.start
    steps = config.trainer.profile.steps
    if start is not None and start > total - steps:
        raise invalid(
            "trainer.profile.start",
            start,
            problem=f"{steps} steps are traced, and the run ends after {total}",
            fix=f"set trainer.profile.start={total - steps}" if total >= steps else "train longer",
        )

"""Trace of a few training steps: when it begins and ends. The engine makes it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path

from runner.config.schema_trainer import ProfileConfig

Trace = Callable[[Path], AbstractContextManager[None]]
FOLDER = "profile"
_STEPS = 5  # traced, unless trainer.profile.steps is set


class Profiler:
    """Traces the steps of `trainer.profile`, once, into `folder`; device calls begin and end with them."""

    def __init__(self, config: ProfileConfig, trace: Trace, folder: Path) -> None:
        """Prepares a trace; `trace` returns a context that traces everything in it into a folder."""
        self.folder = folder / FOLDER
        self._start = config.start
        self._steps = config.steps or _STEPS
        self._trace = trace
        # Keeps the engine's context open from one call to a later one, which no `with` block could span.
        self._open = ExitStack()
        self._is_running = False

    def steps_left(self, step: int) -> int | None:
        """Returns after how many steps a call must end because the trace begins or ends; None: no limit."""
        if self._start is None:
            return None
        for boundary in (self._start, self._start + self._steps):
            if step < boundary:
                return boundary - step
        return None

    def before_call(self, step: int, wait: Callable[[], None]) -> None:
        """Begins the trace if its first step is next; `wait` waits for the devices, which have earlier steps to do."""
        if step == self._start:
            wait()
            self._open.enter_context(self._trace(self.folder))
            self._is_running = True

    def after_call(self, step: int, wait: Callable[[], None]) -> None:
        """Ends the trace if its last step is done; `wait` waits for the devices, so that all of it is traced."""
        if self._is_running and self._start is not None and step >= self._start + self._steps:
            wait()
            self.close()

    def close(self) -> None:
        """Ends a trace that is still running."""
        self._is_running = False
        self._open.close()

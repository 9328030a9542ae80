"""Ctrl-C and SIGTERM end a run between two device calls, never inside one."""

from __future__ import annotations

import signal
from types import FrameType
from typing import Any

from runner.errors import Interrupted

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class StopRequest:
    """Notes the first signal; the loop asks for it. A second signal ends the program where it stands.

    Until `deferred` is set a signal raises `Interrupted` at once: before the loop there is nothing to lose.
    """

    def __init__(self) -> None:
        self.deferred = False
        self._signum: int | None = None
        self._before: dict[int, Any] = {}

    def __enter__(self) -> StopRequest:
        for signum in _SIGNALS:
            self._before[signum] = signal.signal(signum, self._note)
        return self

    def __exit__(self, *exc: object) -> None:
        for signum, handler in self._before.items():
            signal.signal(signum, handler)

    def _note(self, signum: int, _frame: FrameType | None) -> None:
        again, self._signum = self._signum is not None, signum
        if again:
            signal.signal(signum, signal.SIG_DFL)
            signal.raise_signal(signum)
        if not self.deferred:
            raise Interrupted(signum)

    @property
    def requested(self) -> bool:
        """Whether a signal came."""
        return self._signum is not None

    def raise_if_requested(self) -> None:
        """Raises `Interrupted` if a signal came since the loop began."""
        if self._signum is not None:
            raise Interrupted(self._signum)

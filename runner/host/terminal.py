"""Standard output whose terminal may be closed: a run goes on, and ends, without it."""

from __future__ import annotations

import errno
import os
import sys
import time
from collections.abc import Callable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, TextIO

_SIGNAL_S = 0.3  # a pipe's reader that a closed terminal ends may leave before the signal reaches us


class Output:
    """A standard stream that says nothing more, rather than fail, once nobody can read it any longer.

    A pipe whose reader left is an error as ever, unless the same event ends this program.
    """

    def __init__(self, stream: TextIO, ending: Callable[[], bool]) -> None:
        """Takes over a stream.

        Args:
          stream: the real one.
          ending: says whether a signal has come.
        """
        self._stream = stream
        self._ending = ending

    def write(self, text: str) -> int:
        """Writes as the stream does."""
        try:
            return self._stream.write(text)
        except OSError as error:
            self._give_up(error)
            return len(text)

    def flush(self) -> None:
        """Flushes as the stream does."""
        try:
            self._stream.flush()
        except OSError as error:
            self._give_up(error)
            self._stream.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def _give_up(self, error: OSError) -> None:
        """Leads the stream nowhere; raises where its failure means something else."""
        if error.errno == errno.EPIPE and not self._ending():
            time.sleep(_SIGNAL_S)
        if error.errno != errno.EIO and not (error.errno == errno.EPIPE and self._ending()):
            raise error
        self.abandon()

    def abandon(self) -> None:
        """Leads nowhere what is written from now on."""
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, self._stream.fileno())
        os.close(nowhere)


def forgive_closed_terminal(ending: Callable[[], bool]) -> list[Output]:
    """Lets this process's standard output and error survive the end of their terminal.

    Args:
      ending: says whether a signal has come.

    Returns:
      What stands in for the two from now on.
    """
    made = []
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is not None:
            made.append(Output(stream, ending))
            setattr(sys, name, made[-1])
    return made

"""The program that runs on the devices now."""

from __future__ import annotations

import jax


class RunningProgram:
    """The last program that this process started on several CPU devices.

    There is one, whichever engine started it.

    Virtual devices share XLA's threads, and two programs at a time would need twice as many, see
    `runner.engine.jax.environment.threads`. A second engine in the process, as in a comparison, shares them too.
    """

    def __init__(self) -> None:
        self._results: object = None

    def wait(self) -> None:
        """Waits for the program to end."""
        jax.block_until_ready(self._results)

    def remember(self, results: object) -> None:
        """Notes the results of a program that has just been started."""
        self._results = results

    def release(self) -> None:
        """Waits for the program to end and releases its results."""
        self.wait()
        self._results = None


RUNNING = RunningProgram()

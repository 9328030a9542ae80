"""The watchdog of a run: it reports what takes far longer than usual, and ends a run that hangs.

A thread compares the work that the main thread is doing (a device call, waiting for input, an evaluation, a save) with
the median of that kind of work so far. It needs nothing of the main thread, which may be blocked in a collective.
Each process has its own watchdog: a process that waits for another one in a collective is late too, so all of them
write their stacks.
"""

from __future__ import annotations

import faulthandler
import os
import threading
from collections.abc import Callable
from pathlib import Path

from runner.config.durations import seconds_of
from runner.config.schema_trainer import WatchdogConfig
from runner.errors import EXIT_FAILED, describe
from runner.host import work
from runner.host.outputs import spared, warn

# Between two looks at the clock; short next to anything that is reported.
_LOOK_S = 1.0

# For the stacks and the record of a run that is ended, whose disk or tracking server may be what hangs.
_RECORD_S = 25.0

# What has a usual time, and how a line names it. A start or restore, a compilation and a report or sample have none.
_WATCHED = {
    work.TRAINING: "a call of training steps",
    work.INPUT: "waiting for examples",
    work.EVALUATION: "an evaluation",
    work.SAVE: "a save",
}


class Watchdog:
    """Watches the main thread of one process."""

    def __init__(
        self,
        config: WatchdogConfig,
        clock: work.Clock,
        folder: Path,
        index: int,
        report: Callable[[str], object],
        end: Callable[[str], object] | None,
        exit_process: Callable[[], object] | None = None,
    ) -> None:
        """Takes what it watches; `start` starts the thread.

        Args:
          config: what is reported, and when the run is ended.
          clock: of the main thread.
          folder: for the stacks.
          index: of this process, for the name of their file.
          report: takes a line about work that takes long.
          end: takes the reason, and records it before the process ends; None: this process leaves that to process 0.
          exit_process: ends the process; None: `leave`.
        """
        self._config = config
        self._clock = clock
        self._folder = folder
        self._index = index
        self._report = report
        self._end = end
        self._exit_process = exit_process or leave
        self._reports = 0
        self._reported: float | None = None
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)

    def start(self) -> None:
        """Starts to watch."""
        self._thread.start()

    def close(self) -> None:
        """Stops to watch."""
        self._over.set()
        if self._thread.is_alive():
            self._thread.join()

    def look(self) -> None:
        """Compares the present work with its usual time, and reports it once if it takes too long."""
        present = self._clock.present()
        if present.kind not in _WATCHED:
            return
        name = _WATCHED[present.kind]
        limit = self._config.end_after
        if limit is not None and self._end is not None and present.seconds > seconds_of(limit):
            why = f"{name} has taken {present.seconds:.0f} s, longer than trainer.watchdog.end_after={limit}"
            self._end_process(why, self._end)
            return
        if present.median is None or self._config.factor is None:
            return
        usual = max(self._config.factor * present.median, seconds_of(self._config.at_least))
        if present.seconds > usual and present.began != self._reported:
            self._reported = present.began
            self._report(
                f"{name} has taken {present.seconds:.0f} s so far, and its median is {present.median:.2g} s; the "
                f"stacks are in {self._write_stacks()}"
            )

    def _watch(self) -> None:
        while not self._over.wait(_LOOK_S):
            try:
                self.look()
            except Exception as error:  # what it reports to; the next look may have to end the run
                warn(f"the watchdog could not report: {describe(error)}")

    def _end_process(self, why: str, end: Callable[[str], object]) -> None:
        """Ends this process, after the reason is recorded if that takes only seconds."""
        timer = threading.Timer(_RECORD_S, self._exit_process)
        timer.daemon = True
        timer.start()
        try:
            warn(why)
            end(f"{why}; the stacks are in {self._write_stacks()}")
        except Exception as error:
            warn(f"could not record why the run ends: {describe(error)}")
        finally:
            self._exit_process()
            # Only a test is still here.
            timer.cancel()

    def _write_stacks(self) -> Path:
        """Writes the stacks of all threads of this process; returns the file."""
        self._reports += 1
        path = self._folder / f"stacks-{self._index}-{self._reports}.txt"
        with spared(str(path)), path.open("w", encoding="utf-8") as file:
            faulthandler.dump_traceback(file, all_threads=True)
        return path


def leave() -> None:
    """Ends this process at once, whose main thread may be blocked for ever; the others then see that it is gone."""
    os._exit(EXIT_FAILED)

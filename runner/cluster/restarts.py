"""Restarts of a run after a loss: how many, after which wait, and after which ends there is none.

What starts a run again (the launcher of `cluster=local`, or `runner.supervise`) passes the path of a folder to the run
in an environment variable. A process whose run would fail again for the same reason, an invalid config or a NaN or Inf
loss, writes that reason to the file `final` there. Every other failure is a loss, and so is a config that is invalid
only for now (`PassingError`), which a process writes to the file `passing`.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Literal

from runner.errors import EXIT_DONE, EXIT_FINAL, EXIT_REFUSED
from runner.host.signals import described

# The folder for the reason why the run would fail again, and why the attempt before this one ended.
FOLDER_VARIABLE = "RUNNER_RESTARTS"
BEFORE_VARIABLE = "RUNNER_EARLIER_END"

# Seconds before the first restart in a row, doubled for each further one, and the longest wait. A lost peer's ports
# and a scheduler need a moment; a machine that reboots needs minutes, and asking it every minute costs nothing.
FIRST_WAIT_S = 1.0
LONGEST_WAIT_S = 60.0


def note(kind: Literal["final", "passing"], why: str) -> None:
    """Records why the run would fail again, or why its config is invalid for now, for whoever would start it again."""
    folder = os.environ.get(FOLDER_VARIABLE)
    if folder:
        with suppress(OSError):
            (Path(folder) / kind).write_text(why, encoding="utf-8")


def is_supervised() -> bool:
    """Returns whether a supervisor or a launcher with restarts has started this process."""
    return bool(os.environ.get(FOLDER_VARIABLE))


def earlier_end() -> str:
    """Returns why the attempt before this one ended, as far as what started this process knows; empty: unknown."""
    return os.environ.get(BEFORE_VARIABLE, "")


def run(start: Callable[[Mapping[str, str]], int], most: int) -> int:
    """Runs something until it ends well, for good, or after the most restarts; returns the exit code.

    `start` runs it with variables in addition to this process's, and raises `Interrupted` if a signal ended it.
    """
    before = ""
    wait = FIRST_WAIT_S
    left = most
    while True:
        with tempfile.TemporaryDirectory(prefix="runner-restarts-") as folder:
            code = start({FOLDER_VARIABLE: folder, BEFORE_VARIABLE: before})
            is_invalid = code == EXIT_REFUSED and not (Path(folder) / "passing").exists()
            would_fail_again = is_invalid or (Path(folder) / "final").exists()
        if code == EXIT_DONE:
            return code
        if would_fail_again:
            _say("not started again: the run would fail for the same reason")
            return code if is_invalid else EXIT_FINAL
        before = described(code)
        if not left:
            _say(f"not started again: {before}, after {most} restarts (cluster.restarts)")
            return code
        left -= 1
        _say(f"{before}; starting the run again in {wait:.0f} s")
        time.sleep(wait)
        wait = min(2.0 * wait, LONGEST_WAIT_S)


def _say(line: str) -> None:
    print(f"restarts: {line}", file=sys.stderr, flush=True)

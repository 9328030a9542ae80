"""Progress of a run on the terminal, and its final table."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Mapping
from datetime import timedelta

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn
from rich.table import Table

from runner.console import Console
from runner.task.base import Evaluation

# A log of a long run stays short, and that of a run that hangs shows it soon.
_SECONDS_BETWEEN_LINES = 10.0

# Shown for a metric of which no step was read yet.
_UNREAD = "-"

# Values from `_LARGE` on have enough digits without decimals, and below `_SMALL` four decimals show one digit or none.
_LARGE = 1e5
_SMALL = 5e-4

# Metric -> mean of the steps that were read, the loss first; NaN if none was.
Means = Mapping[str, float]


class Display:
    """Shows the progress of training and the time to its end: a bar per period on a terminal, or lines elsewhere."""

    def __init__(self, mode: str = "none", console: Console | None = None, evaluated: str = "test") -> None:
        """Shows nothing yet; `mode` is `trainer.progress`, and `evaluated` names the split of evaluations."""
        self._console = console or Console(quiet=True)
        self._evaluated = evaluated
        self._shows = mode != "none"
        self._period = ""
        self._steps = 0
        self._steps_after = 0
        # When the first call had ended, which compiles, and the run's steps that were left then. The pace since then
        # has evaluations and checkpoints in it.
        self._first_call: tuple[float, int] | None = None
        self._left = ""
        self._shown = time.monotonic()
        self._task: TaskID | None = None
        self._progress: Progress | None = None
        if mode == "bar" or (mode == "auto" and self._console.is_terminal):
            self._progress = Progress(
                TextColumn("{task.description}", markup=False),
                BarColumn(bar_width=24),
                MofNCompleteColumn(),
                TextColumn("{task.fields[rate]:.0f} steps/s  {task.fields[metrics]}", markup=False),
                TextColumn("{task.fields[left]}", markup=False),
                console=self._console,
                transient=True,
            )

    def start_period(self, name: str, steps: int, done: int = 0, after: int = 0) -> None:
        """Starts a period, such as `epoch 1/3`, of which `done` steps are done; the run has `after` steps after it."""
        self._period = name
        self._steps = steps
        self._steps_after = after
        if self._progress is not None:
            self._progress.start()
            # A NaN or Inf loss may have ended the last period before its bar was removed.
            self._remove_bar()
            self._task = self._progress.add_task(
                name, total=steps, completed=done, rate=0.0, metrics="", left=self._left
            )

    def update(self, done: int, rate: float, means: Means) -> None:
        """Shows the steps of the period that are done, steps per second, and the means of the period so far."""
        self._left = self._time_left(done)
        if self._progress is not None and self._task is not None:
            self._progress.update(self._task, completed=done, rate=rate, metrics=metrics_line(means), left=self._left)
        elif self._shows and time.monotonic() - self._shown >= _SECONDS_BETWEEN_LINES:
            line = f"{self._period}  step {done}/{self._steps}  {rate:.0f} steps/s  {metrics_line(means)}"
            if self._left:
                line += f"  {self._left} left"
            self._print(line)

    def _time_left(self, done: int) -> str:
        """Returns the time to the end of the run when so many steps of the period are done; nothing at first."""
        now = time.monotonic()
        left = self._steps - done + self._steps_after
        self._first_call = self._first_call or (now, left)
        began, left_then = self._first_call
        if left == left_then:
            return ""
        return f"run {timedelta(seconds=round(left * (now - began) / (left_then - left)))}"

    def end_period(self, means: Means, evaluation: Evaluation | None) -> None:
        """Prints the period's line, with the evaluation after it if one was due."""
        self._remove_bar()
        line = f"{self._period} train {metrics_line(means)}"
        if evaluation is not None:
            line += f" | {self._evaluated} {metrics_line(evaluation.metrics)}"
        if self._shows:
            self._print(line)

    def close(self) -> None:
        """Leaves the terminal clean."""
        if self._progress is not None:
            self._progress.stop()

    def _print(self, line: str) -> None:
        self._shown = time.monotonic()
        self._console.print(line, highlight=False, soft_wrap=True, markup=False)

    def _remove_bar(self) -> None:
        if self._progress is not None and self._task is not None:
            self._progress.remove_task(self._task)
            self._task = None


def shown(value: float) -> str:
    """Returns a metric's value for printing.

    >>> shown(0.97251), shown(123456.7), shown(0.00001234), shown(math.nan)
    ('0.9725', '123,457', '1.234e-05', '-')
    """
    if math.isnan(value):
        return _UNREAD
    if abs(value) >= _LARGE:
        return f"{value:,.6g}"
    if value == 0 or abs(value) >= _SMALL:
        return f"{value:.4f}"
    return f"{value:.4g}"


def metrics_line(metrics: Means) -> str:
    """Returns metrics and their values on one line."""
    return ", ".join(f"{name} {shown(value)}" for name, value in metrics.items())


def evaluation_line(split: str, evaluation: Evaluation) -> str:
    """Returns an evaluation of a split on one line."""
    return f"{split} {metrics_line(evaluation.metrics)} ({evaluation.examples:,})"


def result_table(rows: Iterable[tuple[str, str]]) -> Table:
    """Returns the final table of a run."""
    table = Table(show_header=False)
    table.add_column(style="bold")
    table.add_column(justify="right")
    for name, value in rows:
        table.add_row(name, value)
    return table

"""Progress of a run on the terminal, and its final table."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Mapping

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.table import Table

from runner.host.console import clean_redirected
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
    """Shows the progress of training; this one shows nothing (`trainer.progress=none`)."""

    def start_period(self, name: str, steps: int, done: int = 0) -> None:
        """Starts a period, such as an epoch.

        Args:
          name: such as `epoch 1/3`.
          steps: of the period.
          done: steps of it that a resumed run has done already.
        """

    def update(self, done: int, rate: float, means: Means) -> None:
        """Shows the progress within a period.

        Args:
          done: steps of the period that are done.
          rate: steps per second.
          means: of the period so far.
        """

    def end_period(self, means: Means, evaluation: Evaluation | None) -> None:
        """Ends a period.

        Args:
          means: of the period.
          evaluation: after it; None if none was due.
        """

    def close(self) -> None:
        """Leaves the terminal clean."""


def make_display(mode: str, console: Console, evaluated: str = "test") -> Display:
    """Returns the display of a run.

    Args:
      mode: `trainer.progress`; `auto` is a bar on a terminal and lines elsewhere.
      console: to print to.
      evaluated: name of the split that evaluations are on.
    """
    if mode == "none":
        return Display()
    if mode == "bar" or (mode == "auto" and console.is_terminal):
        return BarDisplay(console, evaluated)
    return LineDisplay(console, evaluated)


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


def _period_line(period: str, means: Means, evaluated: str, evaluation: Evaluation | None) -> str:
    line = f"{period} train {metrics_line(means)}"
    if evaluation is not None:
        line += f" | {evaluated} {metrics_line(evaluation.metrics)}"
    return line


def _print(console: Console, line: str) -> None:
    console.print(line, highlight=False, soft_wrap=True, markup=False)


class LineDisplay(Display):
    """Prints one line every few seconds and one per period, for logs and pipes."""

    def __init__(self, console: Console, evaluated: str) -> None:
        self._console = console
        self._evaluated = evaluated
        self._period = ""
        self._steps = 0
        self._shown = time.monotonic()

    def start_period(self, name: str, steps: int, done: int = 0) -> None:  # noqa: ARG002
        """Starts a period; prints nothing."""
        self._period = name
        self._steps = steps

    def update(self, done: int, rate: float, means: Means) -> None:
        """Prints a line if the last one is some seconds old."""
        if time.monotonic() - self._shown >= _SECONDS_BETWEEN_LINES:
            self._shown = time.monotonic()
            seconds_left = (self._steps - done) / rate if rate else 0.0
            progress = f"step {done}/{self._steps}  {rate:.0f} steps/s"
            _print(self._console, f"{self._period}  {progress}  {metrics_line(means)}  {seconds_left:.0f} s left")

    def end_period(self, means: Means, evaluation: Evaluation | None) -> None:
        """Prints the period's line."""
        self._shown = time.monotonic()
        _print(self._console, _period_line(self._period, means, self._evaluated, evaluation))


class BarDisplay(Display):
    """Shows one progress bar per period."""

    def __init__(self, console: Console, evaluated: str) -> None:
        self._period = ""
        self._evaluated = evaluated
        self._progress = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TextColumn("{task.fields[rate]:.0f} steps/s  {task.fields[metrics]}", markup=False),
            TimeRemainingColumn(),
            console=console,
            transient=True,
        )
        self._task: TaskID | None = None

    def start_period(self, name: str, steps: int, done: int = 0) -> None:
        """Starts a new bar."""
        self._period = name
        self._progress.start()
        clean_redirected()
        # A NaN or Inf loss may have ended the last period before its bar was removed.
        self._remove_bar()
        self._task = self._progress.add_task(name, total=steps, completed=done, rate=0.0, metrics="")

    def update(self, done: int, rate: float, means: Means) -> None:
        """Moves the bar."""
        assert self._task is not None
        self._progress.update(self._task, completed=done, rate=rate, metrics=metrics_line(means))

    def end_period(self, means: Means, evaluation: Evaluation | None) -> None:
        """Replaces the bar with the period's line."""
        self._remove_bar()
        _print(self._progress.console, _period_line(self._period, means, self._evaluated, evaluation))

    def close(self) -> None:
        """Stops drawing."""
        self._progress.stop()

    def _remove_bar(self) -> None:
        if self._task is not None:
            self._progress.remove_task(self._task)
            self._task = None


def result_table(rows: Iterable[tuple[str, str]]) -> Table:
    """Returns the final table of a run."""
    table = Table(show_header=False)
    table.add_column(style="bold")
    table.add_column(justify="right")
    for name, value in rows:
        table.add_row(name, value)
    return table

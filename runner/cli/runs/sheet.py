"""Runs side by side: one line per config, as a table on the terminal, as CSV, as Markdown."""

from __future__ import annotations

import csv
import io
import math
import os
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from rich.console import Group
from rich.text import Text

from runner.cli.runs.records import (
    RunRecord,
    directions,
)
from runner.config.names import short_keys, short_value
from runner.host.console import Console
from runner.host.tables import Column, fitted
from runner.task import metrics

SEED = "trainer.seed"
GROUPS = ("engine", "mesh", "layout", "model", "optimizer", "dataset", "task")
# Params that differ between runs of the same experiment.
_NOT_COMPARED = ("run.command", "tracking.", "sweep.", "trainer.progress", "cluster.restart")


_TRAIN_LOSS = f"{metrics.TRAIN}loss"
_SPEED = ("throughput/examples_per_second", "throughput/step_ms", "goodput/training")
_SHORT_TITLES = {
    "throughput/step_ms": "step ms",
    "throughput/examples_per_second": "examples/s",
    "goodput/training": "goodput",
    "plan/bytes_per_device": "bytes/device",
    "plan/collective_bytes": "moved/step",
    "plan/flops_per_device": "flops/device",
}
_STYLES = {"passed": "green", "FINISHED": "green", "failed": "red", "FAILED": "red"}
# Columns that are shown however narrow the terminal is.
_ALWAYS_SHOWN = ("status", "verified")
# Width of a pipe or a file, which have none of their own: a wide terminal's.
_DEFAULT_WIDTH = 160


@dataclass(frozen=True)
class Stat:
    """A metric over the runs of a line.

    Attributes:
      mean: over the runs that have it.
      deviation: sample standard deviation; 0 for one run.
      count: runs that have it.
    """

    mean: float
    deviation: float = 0.0
    count: int = 1


@dataclass(frozen=True)
class Line:
    """One config with its results.

    Attributes:
      values: the keys in which the lines differ, with the values of this line.
      metrics: results.
      records: its runs, one per seed.
    """

    values: Mapping[str, str]
    metrics: Mapping[str, Stat]
    records: tuple[RunRecord, ...]

    @property
    def status(self) -> str:
        """The status of its runs, such as `FINISHED` or `FINISHED 2, FAILED 1`."""
        counts = Counter(record.status for record in self.records)
        if len(counts) == 1:
            return next(iter(counts))
        return ", ".join(f"{status} {count}" for status, count in counts.items())


def make_lines(records: Sequence[RunRecord], keys: Sequence[str] | None = None) -> list[Line]:
    """Returns one line per config, in the order of the first runs; runs that differ only in `trainer.seed` share one.

    Args:
      records: runs.
      keys: keys that distinguish the lines; None: every key in which the runs differ.
    """
    if keys is None:
        keys = varying(records)
    keys = [key for key in keys if key != SEED]
    groups: dict[tuple[str, ...], list[RunRecord]] = {}
    for record in records:
        groups.setdefault(tuple(_value(record, key) for key in keys), []).append(record)
    lines = []
    for values, members in groups.items():
        lines.append(Line(dict(zip(keys, values, strict=True)), _stats(members), tuple(members)))
    return lines


def _value(record: RunRecord, key: str) -> str:
    """Returns a run's value of a key: a sweep's, a group's option, or a param."""
    varied = record.tags.get(f"varied.{key}")
    if varied is not None:
        return varied
    if key in GROUPS:
        return record.tags.get(f"runner.{key}", "")
    return record.params.get(key, "")


def varying(records: Sequence[RunRecord]) -> list[str]:
    """Returns the keys in which the runs differ.

    If the runs use different options of a group (mesh=single, mesh=batch8), the group is listed in place of those of
    its keys whose values follow from the option.
    """
    groups = [group for group in GROUPS if _differs(_value(record, group) for record in records)]
    params: set[str] = set()
    for record in records:
        params.update(record.params)
    keys = list(groups)
    for key in sorted(params):
        if key.startswith(_NOT_COMPARED):
            continue
        if _differs(record.params.get(key, "") for record in records) and not _follows_group(records, key, groups):
            keys.append(key)
    return keys


def _differs(values: Iterable[str]) -> bool:
    return len(set(values)) > 1


def _follows_group(records: Sequence[RunRecord], key: str, groups: Sequence[str]) -> bool:
    """Returns whether a key has one value per option of its group."""
    group = key.split(".")[0]
    if group not in groups:
        return False
    values_by_option: dict[str, set[str]] = {}
    for record in records:
        values_by_option.setdefault(_value(record, group), set()).add(record.params.get(key, ""))
    return all(len(values) == 1 for values in values_by_option.values())


def _stats(records: Sequence[RunRecord]) -> dict[str, Stat]:
    values: dict[str, list[float]] = {}
    for record in records:
        for name, number in record.metrics.items():
            values.setdefault(name, []).append(number)
    return {name: stat(numbers) for name, numbers in values.items()}


def stat(values: Sequence[float]) -> Stat:
    """Returns mean and sample standard deviation, which is NaN if a value is not finite.

    >>> stat([1.0, 3.0])
    Stat(mean=2.0, deviation=1.4142135623730951, count=2)
    """
    count = len(values)
    if not all(map(math.isfinite, values)):
        return Stat(sum(values) / count, math.nan, count)
    deviation = statistics.stdev(values) if count > 1 else 0.0
    return Stat(statistics.fmean(values), deviation, count)


def sort_lines(lines: Iterable[Line], metric: str, *, descending: bool) -> list[Line]:
    """Returns the lines sorted by a metric; those without it, or with NaN, are last."""
    sign = -1.0 if descending else 1.0

    def rank(line: Line) -> tuple[bool, float]:
        stat = line.metrics.get(metric)
        if stat is None or math.isnan(stat.mean):
            return (True, 0.0)
        return (False, sign * stat.mean)

    return sorted(lines, key=rank)


@dataclass(frozen=True)
class Sheet:
    """A table of text.

    Attributes:
      titles: titles of the columns.
      rows: rows of one cell per column.
      numeric: indices of right-aligned columns.
      best: index of the highlighted row; null: none.
    """

    titles: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    numeric: frozenset[int] = frozenset()
    best: int | None = None


def sheet_of(
    lines: Sequence[Line],
    names: Sequence[str],
    *,
    lead: Mapping[str, Sequence[str]] | None = None,
    extra: Mapping[str, Sequence[str]] | None = None,
) -> Sheet:
    """Returns the table of a comparison.

    Args:
      lines: the rows, in order.
      names: metrics that are columns if any line has them.
      lead: columns before the keys, title to one cell per line.
      extra: columns after the keys, in the same form.
    """
    lead = lead or {}
    extra = extra or {}
    # As dictionaries, which keep the order.
    keys: dict[str, str] = {}
    recorded: dict[str, Stat] = {}
    for line in lines:
        keys |= line.values
        recorded |= line.metrics
    shown = [metric for metric in names if metric in recorded]
    is_folded = any(len(line.records) > 1 for line in lines)
    titles = [*lead, *short_keys(list(keys)).values(), *extra]
    first_number = len(lead) + len(keys) + len(extra)
    if is_folded:
        titles.append("runs")
    titles += [_title(metric, shown) for metric in shown]
    rows = []
    for index, line in enumerate(lines):
        cells = [column[index] for column in lead.values()]
        cells += [short_value(line.values.get(key, "")) for key in keys]
        cells += [column[index] for column in extra.values()]
        if is_folded:
            cells.append(str(len(line.records)))
        cells += [show(line.metrics.get(metric)) for metric in shown]
        rows.append(tuple(cells))
    return Sheet(tuple(titles), tuple(rows), frozenset(range(first_number, len(titles))))


def columns(records: Sequence[RunRecord], first: str) -> list[str]:
    """Returns the metrics that a table shows if any run has them, `first` in the first column."""
    # The loss is first there, and the last metric of each split here.
    loss, *evaluated = directions(records)
    evaluated.append(loss)
    tested = [metrics.TEST + name.removeprefix(metrics.EVAL) for name in evaluated]
    names = (first, *evaluated, *tested, _TRAIN_LOSS, *_SPEED)
    return list(dict.fromkeys(names))


def _title(metric: str, shown: Sequence[str]) -> str:
    """Returns a column's title.

    Runs without metrics of the test split evaluate on the test split; runs with them evaluate on a validation split.

    >>> _title("eval/loss", ["eval/loss"]), _title("eval/loss", ["eval/loss", "test/loss"])
    ('test loss', 'validation loss')
    """
    split, _, name = metric.partition("/")
    if f"{split}/" == metrics.EVAL:
        has_test = any(other.startswith(metrics.TEST) for other in shown)
        if has_test:
            return f"validation {name}"
        return f"test {name}"
    if f"{split}/" == metrics.TEST:
        return f"test {name}"
    return _SHORT_TITLES.get(metric, metric)


def show(stat: Stat | None) -> str:
    """Returns a metric as a cell shows it, with the deviation of several runs.

    >>> show(Stat(0.91234)), show(Stat(0.5, 0.01, 3)), show(None)
    ('0.9123', '0.5000 ± 0.0100', '')
    """
    if stat is None:
        return ""
    mean = _number(stat.mean)
    if stat.count > 1:
        return f"{mean} ± {_number(stat.deviation)}"
    return mean


def _number(number: float) -> str:
    """Returns a number as a cell shows it.

    It has four decimals or digits, and thousands have separators.
    """
    if math.isnan(number):
        return "NaN"
    if math.isinf(number):
        return str(number)
    is_large = abs(number) >= 1000
    if number == int(number) and (is_large or number == 0):
        return f"{int(number):,}"
    if is_large:
        return f"{number:,.0f}"
    if abs(number) >= 10:
        return f"{number:.4g}"
    return f"{number:.4f}"


def console() -> Console:
    """Returns a console that is wide enough for a table.

    It has that width if neither a terminal nor COLUMNS determines one.
    """
    default = Console()
    if default.is_terminal or "COLUMNS" in os.environ:
        return default
    return Console(width=_DEFAULT_WIDTH)


def rich_table(sheet: Sheet, title: str, width: int) -> Group:
    """Returns the table for a terminal of that width.

    If it is too narrow, the last metrics are dropped first.
    """
    columns = []
    for index, name in enumerate(sheet.titles):
        columns.append(Column(name, index in sheet.numeric, _drop_order(sheet, index, name)))
    rows = []
    for row in sheet.rows:
        # The status of a folded line is followed by a count, as in `FINISHED 2`.
        rows.append([Text(cell, style=_STYLES.get(cell.split(" ")[0], "")) for cell in row])
    styles = [""] * len(rows)
    if sheet.best is not None:
        styles[sheet.best] = "bold"
    return fitted(columns, rows, width, title=title, styles=styles)


def _drop_order(sheet: Sheet, index: int, name: str) -> int:
    """Returns how soon a column is dropped; 0: never.

    Metrics are dropped from the right, then keys, never the first of each.
    """
    if index in sheet.numeric:
        position = index - min(sheet.numeric)
        is_first = position == 0
        order = len(sheet.titles) + position
    else:
        is_first = index <= 1
        order = index
    if is_first or name in _ALWAYS_SHOWN:
        return 0
    return order


def to_csv(sheet: Sheet) -> str:
    """Returns the table as CSV, with a header."""
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerows([sheet.titles, *sheet.rows])
    return out.getvalue()


def to_markdown(sheet: Sheet) -> str:
    """Returns the table as Markdown; the best row is bold."""
    rule = ["---"] * len(sheet.titles)
    for index in sheet.numeric:
        rule[index] = "---:"
    lines = [_markdown_row(sheet.titles), _markdown_row(rule)]
    for index, cells in enumerate(sheet.rows):
        lines.append(_markdown_row(cells, is_bold=index == sheet.best))
    return "\n".join(lines) + "\n"


def _markdown_row(cells: Sequence[str], *, is_bold: bool = False) -> str:
    texts = []
    for cell in cells:
        text = cell.replace("|", "\\|").replace("\n", " ")
        if is_bold and text:
            text = f"**{text}**"
        texts.append(text)
    return f"| {' | '.join(texts)} |"

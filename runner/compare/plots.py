"""Plots of a comparison: curves, a metric by a key, a heat map of two keys."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import StrMethodFormatter

from runner.compare.curves import Curves
from runner.compare.lines import Line, Stat, as_number
from runner.compare.metrics import lower_is_better
from runner.compare.records import RunRecord
from runner.config.names import short_keys, varied_name
from runner.report import palette
from runner.report.figures import ink, log_axis, name_places, save, show_last_tenth, subplots

# Series that can be told apart by color.
_MAX_SERIES = len(palette.SERIES)
# Numbers on an axis that are labeled one by one; of more, Matplotlib chooses some.
_MAX_TICKS = 8
# Curves with fewer points have markers: their lines alone would hide how few points there are.
_MANY_POINTS = 12
# Keys whose largest value is so many times the smallest are drawn on a log axis. Sweeps usually double or go by tens.
_LOG_RATIO = 8.0
# Alternating line styles, so that both of two coinciding curves are visible.
_DASHES = ("solid", (0, (4, 3)))
# Horizontal distance between the points of two series at one category, of which each has a width of 1.
_DODGE = 0.07
# Labels of a heat map that are longer would touch each other.
_MAX_HEAT_LABEL = 6


def looks(labels: Sequence[str]) -> dict[str, str]:
    """Returns a color for each of some runs, for every plot of them.

    Args:
      labels: of the runs, best first; those after the seventh are gray, because no more colors can be told apart.
    """
    grays = [palette.OTHER] * len(labels[_MAX_SERIES:])
    return dict(zip(labels, [*palette.SERIES, *grays], strict=False))


def curves(path: Path, drawn: Curves, colors: Mapping[str, str]) -> None:
    """Draws a metric by steps or examples, one curve per run.

    Args:
      path: PNG file to write.
      drawn: at least one curve.
      colors: label of a run to its color, best first; the gray ones share one name in the legend.
    """
    figure, axes = subplots(1, 1, figsize=(8.5, 4.6))
    gray = []
    named = []
    for label in colors:
        if label not in drawn.points:
            continue
        if colors[label] == palette.OTHER:
            gray.append(label)
        else:
            named.append(label)
    legend: str | None = f"{len(gray)} others"
    for label in gray:
        x, y = zip(*drawn.points[label], strict=True)
        axes.plot(x, y, color=palette.OTHER, lw=0.8, label=legend, zorder=1)
        # One entry in the legend is for all of them.
        legend = None
    for index, label in enumerate(named):
        x, y = zip(*drawn.points[label], strict=True)
        marker = None
        if len(x) < _MANY_POINTS:
            marker = "o"
        dashes: Any = _DASHES[index % len(_DASHES)]
        axes.plot(x, y, color=colors[label], lw=1.8, linestyle=dashes, marker=marker, ms=4, label=label, zorder=2)
    axes.set_xlabel(drawn.along)
    axes.xaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
    axes.xaxis.get_major_locator().set_params(integer=True, nbins=8)
    axes.set_title(drawn.metric)
    values: list[float] = []
    for points in drawn.points.values():
        values += [value for _, value in points]
    if "loss" in drawn.metric and all(value > 0 for value in values):
        log_axis(axes)
    show_last_tenth(axes, values, rises=drawn.rises)
    axes.grid(alpha=0.25)
    handles, texts = axes.get_legend_handles_labels()
    if gray:
        # The gray curves were drawn first, to be below the others; in the legend they are last.
        handles = [*handles[1:], handles[0]]
        texts = [*texts[1:], texts[0]]
    _legend(axes, handles, texts)
    save(figure, path)


@dataclass(frozen=True)
class _Ticks:
    """Values of a key on the x axis.

    Attributes:
      positions: text of a value to its position.
      is_numeric: all values are numbers, which are their own positions.
    """

    positions: Mapping[str, float]
    is_numeric: bool


def _ticks(values: Sequence[str]) -> _Ticks:
    ordered = _ordered(values)
    numbers: list[float] = []
    for text in ordered:
        number = as_number(text)
        if number is None:
            places = map(float, range(len(ordered)))
            return _Ticks(dict(zip(ordered, places, strict=True)), is_numeric=False)
        numbers.append(number)
    return _Ticks(dict(zip(ordered, numbers, strict=True)), is_numeric=True)


def against(path: Path, metric: str, key: str, lines: Sequence[Line], *, related: bool = True) -> None:
    """Draws a metric against one key.

    Numeric values of lines that share the other keys are connected.

    Args:
      path: PNG file to write.
      metric: its name.
      key: one of the lines' keys.
      lines: those without the metric are left out.
      related: false for the trials of a search, which are points whatever keys they happen to share.
    """
    others = {_other_keys(line, key) for line in lines}
    is_crowded = not related or len(others) > _MAX_SERIES
    series: dict[str, list[tuple[str, Stat]]] = {}
    values = []
    for line in lines:
        stat = line.metrics.get(metric)
        if stat is not None and math.isfinite(stat.mean) and key in line.values:
            label = ""
            if not is_crowded:
                label = _other_keys(line, key)
            series.setdefault(label, []).append((line.values[key], stat))
            values.append(line.values[key])
    ticks = _ticks(values)
    figure, axes = subplots(1, 1, figsize=(7.5, 4.4))
    # Points are connected only along a numeric axis, and only if each series has a color of its own.
    line_width = 0.0
    if ticks.is_numeric and not is_crowded:
        line_width = 1.6
    alpha = 1.0
    if is_crowded:
        # Points that overlap stay visible.
        alpha = 0.7
    means: list[float] = []
    for index, (label, points) in enumerate(series.items()):
        points.sort(key=lambda point: ticks.positions[point[0]])
        offset = 0.0
        if not ticks.is_numeric:
            # Points of several series in one category are drawn side by side.
            offset = _DODGE * (index - (len(series) - 1) / 2)
        x = []
        y = []
        errors = []
        for text, stat in points:
            x.append(ticks.positions[text] + offset)
            y.append(stat.mean)
            errors.append(stat.deviation)
        means += y
        axes.errorbar(
            x,
            y,
            yerr=errors if any(errors) else None,
            color=palette.SERIES[index],
            marker="o",
            lw=line_width,
            elinewidth=1.2,
            linestyle=_DASHES[index % len(_DASHES)],
            alpha=alpha,
            ms=6,
            capsize=3,
            label=label or None,
        )
    _label_ticks(axes, ticks)
    axes.set_xlabel(key)
    axes.set_title(f"{metric} by {short_keys([key])[key]}")
    records: list[RunRecord] = []
    for line in lines:
        records += line.records
    rises = not lower_is_better(metric, records)
    show_last_tenth(axes, means, rises=rises)
    axes.grid(alpha=0.25)
    if len(series) > 1:
        _legend(axes, *axes.get_legend_handles_labels())
    save(figure, path)


def _legend(axes: Axes, handles: Sequence[Any], labels: Sequence[str]) -> None:
    """Draws the legend to the right of the axes, where it hides no point."""
    axes.legend(handles, labels, fontsize=8, loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False)


def _other_keys(line: Line, key: str) -> str:
    """Returns a name for a line made of its other keys."""
    others = dict(line.values)
    others.pop(key, None)
    return varied_name(others)


def heat(path: Path, metric: str, keys: tuple[str, str], lines: Sequence[Line]) -> None:
    """Draws a metric over two keys; a cell with several lines shows their mean.

    Args:
      path: PNG file to write.
      metric: its name.
      keys: the keys of the rows and of the columns.
      lines: those without the metric leave their cells empty.
    """
    row_key, column_key = keys
    row_values = []
    column_values = []
    means_of_cells: dict[tuple[str, str], list[float]] = {}
    for line in lines:
        row_value = line.values.get(row_key, "")
        column_value = line.values.get(column_key, "")
        row_values.append(row_value)
        column_values.append(column_value)
        if metric in line.metrics:
            means_of_cells.setdefault((row_value, column_value), []).append(line.metrics[metric].mean)
    rows = _ordered(row_values)
    columns = _ordered(column_values)
    # Cells that stay NaN are not painted, and have a dash for a number.
    grid = np.full((len(rows), len(columns)), np.nan)
    for (row_value, column_value), means in means_of_cells.items():
        grid[rows.index(row_value), columns.index(column_value)] = np.mean(means)
    figure, axes = subplots(1, 1, figsize=(2.6 + 1.1 * len(columns), 1.8 + 0.7 * len(rows)))
    image = axes.imshow(grid, cmap="viridis", aspect="auto")
    figure.colorbar(image, ax=axes, fraction=0.046, label=metric)
    rotation = 0
    if max(map(len, columns)) > _MAX_HEAT_LABEL:
        rotation = 30
    axes.set_xticks(range(len(columns)), columns, rotation=rotation)
    axes.set_yticks(range(len(rows)), rows)
    axes.set_xlabel(column_key)
    axes.set_ylabel(row_key)
    for (row, column), number in np.ndenumerate(grid):
        text = "-"
        color = "black"
        if not math.isnan(number):
            text = f"{number:.4g}"
            color = ink(image.cmap(image.norm(number)))
        axes.text(column, row, text, ha="center", va="center", fontsize=9, color=color)
    save(figure, path)


def _label_ticks(axes: Axes, ticks: _Ticks) -> None:
    texts = list(ticks.positions)
    positions = list(ticks.positions.values())
    if ticks.is_numeric and positions and min(positions) > 0 and max(positions) / min(positions) >= _LOG_RATIO:
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
        axes.minorticks_off()
    if not ticks.is_numeric or len(texts) <= _MAX_TICKS:
        name_places(axes, positions, texts)
    if not ticks.is_numeric:
        axes.set_xlim(-0.5, len(texts) - 0.5)


def _ordered(values: Sequence[str]) -> list[str]:
    """Returns each value once: numbers by size, text in its order.

    Text keeps its order because `single, batch2, batch8` were typed so.
    """
    distinct = list(dict.fromkeys(values))
    numbers: dict[str, float] = {}
    for text in distinct:
        number = as_number(text)
        if number is None:
            return distinct
        numbers[text] = number
    # By the text too, for numbers that are written in two ways.
    return sorted(distinct, key=lambda text: (numbers[text], text))

"""Pictures of a comparison: curves overlaid, a metric against a key, a heat map of two keys."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import StrMethodFormatter

from runner.compare.curves import Curves
from runner.compare.lines import Line, Stat, as_number
from runner.compare.metrics import lower_is_better
from runner.config.names import short_keys, varied_name
from runner.report import palette
from runner.report.figures import ink, log_axis, name_places, save, show_last_tenth, subplots

_MOST_SERIES = len(palette.SERIES)  # that are told apart by color
_MOST_TICKS = 8
_FEW_POINTS = 12  # of a curve, from which on they need no marker
_LOG_RATIO = 8.0  # keys whose values span more than this are drawn on a log axis
_DASHES = ("solid", (0, (4, 3)))  # in turn, so that of two curves on each other both are seen
_DODGE = 0.07  # between the points of two series at one word of the x axis


def looks(labels: Sequence[str]) -> dict[str, str]:
    """Returns a color for each of some runs, which it has in every picture of them.

    Args:
      labels: of the runs, best first; those behind the seventh are gray, since no more colors are told apart.
    """
    colors = [*palette.SERIES, *(palette.OTHER for _ in labels[_MOST_SERIES:])]
    return dict(zip(labels, colors, strict=False))


def curves(path: Path, drawn: Curves, colors: Mapping[str, str]) -> None:
    """Draws a metric by steps or examples, one curve a run.

    Args:
      path: PNG file to write.
      drawn: at least one curve.
      colors: label of a run to its color, best first; the gray ones are not named.
    """
    figure, axes = subplots(1, 1, figsize=(8.5, 4.6))
    gray = [label for label in colors if label in drawn.points and colors[label] == palette.OTHER]
    named = [label for label in colors if label in drawn.points and label not in gray]
    for index, label in enumerate(gray):
        others = f"{len(gray)} others" if index == 0 else None
        axes.plot(*zip(*drawn.points[label], strict=True), color=palette.OTHER, lw=0.8, label=others, zorder=1)
    for index, label in enumerate(named):
        points = drawn.points[label]
        marker = "o" if len(points) < _FEW_POINTS else None
        dashes: Any = _DASHES[index % len(_DASHES)]
        axes.plot(
            *zip(*points, strict=True), color=colors[label], lw=1.8, linestyle=dashes, marker=marker, ms=4,
            label=label, zorder=2,
        )  # fmt: skip
    axes.set_xlabel(drawn.along)
    axes.xaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
    axes.xaxis.get_major_locator().set_params(integer=True, nbins=8)
    axes.set_title(drawn.metric)
    values = [value for points in drawn.points.values() for _, value in points]
    if "loss" in drawn.metric and all(value > 0 for value in values):
        log_axis(axes)
    show_last_tenth(axes, values, rises=drawn.rises)
    axes.grid(alpha=0.25)
    handles, labels = axes.get_legend_handles_labels()
    order = sorted(range(len(labels)), key=lambda at: at < min(len(gray), 1))  # the others last
    _legend(axes, [handles[at] for at in order], [labels[at] for at in order])
    save(figure, path)


def against(path: Path, metric: str, key: str, lines: Sequence[Line], *, related: bool = True) -> None:
    """Draws a metric against one key; lines that share the other keys are joined where the key is a number.

    Args:
      path: PNG file to write.
      metric: its name.
      key: one of the lines' keys.
      lines: those without the metric are left out.
      related: false of a search's trials: they are points, whatever keys they happen to share.
    """
    series: dict[str, list[tuple[str, Stat]]] = {}
    crowded = not related or len({_rest(line, key) for line in lines}) > _MOST_SERIES
    for line in lines:
        found = line.metrics.get(metric)
        if found is not None and math.isfinite(found.mean) and key in line.values:
            rest = "" if crowded else _rest(line, key)
            series.setdefault(rest, []).append((line.values[key], found))
    ticks = _ordered([text for points in series.values() for text, _ in points])
    numbers = [as_number(text) for text in ticks]
    numeric = all(number is not None for number in numbers)
    place: dict[str, float] = {
        t: float(n) if numeric and n is not None else i for i, (t, n) in enumerate(zip(ticks, numbers, strict=True))
    }
    figure, axes = subplots(1, 1, figsize=(7.5, 4.4))
    for index, (label, points) in enumerate(series.items()):
        points.sort(key=lambda point: place[point[0]])
        errors = [found.deviation for _, found in points]
        aside = 0.0 if numeric else _DODGE * (index - (len(series) - 1) / 2)
        axes.errorbar(
            [place[text] + aside for text, _ in points],
            [found.mean for _, found in points],
            yerr=errors if any(errors) else None,
            color=palette.SERIES[index],
            marker="o",
            lw=1.6 if numeric and not crowded else 0,
            elinewidth=1.2,
            linestyle=_DASHES[index % len(_DASHES)],
            alpha=0.7 if crowded else 1.0,
            ms=6,
            capsize=3,
            label=label or None,
        )
    _name_ticks(axes, ticks, place, numeric=numeric)
    axes.set_xlabel(key)
    axes.set_title(f"{metric} by {short_keys([key])[key]}")
    rises = not lower_is_better(metric, [record for line in lines for record in line.records])
    show_last_tenth(axes, [found.mean for points in series.values() for _, found in points], rises=rises)
    axes.grid(alpha=0.25)
    if len(series) > 1:
        _legend(axes, *axes.get_legend_handles_labels())
    save(figure, path)


def _legend(axes: Axes, handles: Sequence[Any], labels: Sequence[str]) -> None:
    axes.legend(handles, labels, fontsize=8, loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False)


def _rest(line: Line, key: str) -> str:
    """Names a line by its other keys."""
    return varied_name({other: text for other, text in line.values.items() if other != key})


def heat(path: Path, metric: str, keys: tuple[str, str], lines: Sequence[Line]) -> None:
    """Draws a metric over two keys; a cell of several lines holds their mean.

    Args:
      path: PNG file to write.
      metric: its name.
      keys: down, across.
      lines: those without the metric leave their cells empty.
    """
    down, across = (_ordered([line.values.get(key, "") for line in lines]) for key in keys)
    cells: list[list[list[float]]] = [[[] for _ in across] for _ in down]
    for line in lines:
        if metric in line.metrics:
            row = down.index(line.values.get(keys[0], ""))
            column = across.index(line.values.get(keys[1], ""))
            cells[row][column].append(line.metrics[metric].mean)
    grid = np.array([[np.mean(cell) if cell else np.nan for cell in row] for row in cells])
    figure, axes = subplots(1, 1, figsize=(2.6 + 1.1 * len(across), 1.8 + 0.7 * len(down)))
    image = axes.imshow(grid, cmap="viridis", aspect="auto")
    figure.colorbar(image, ax=axes, fraction=0.046, label=metric)
    axes.set_xticks(range(len(across)), across, rotation=30 if max(map(len, across)) > 6 else 0)
    axes.set_yticks(range(len(down)), down)
    axes.set_xlabel(keys[1])
    axes.set_ylabel(keys[0])
    for row in range(len(down)):
        for column in range(len(across)):
            number = grid[row, column]
            text = "-" if math.isnan(number) else f"{number:.4g}"
            color = "black" if math.isnan(number) else ink(image.cmap(image.norm(number)))
            axes.text(column, row, text, ha="center", va="center", fontsize=9, color=color)
    save(figure, path)


def _name_ticks(axes: Axes, ticks: Sequence[str], place: Mapping[str, float], *, numeric: bool) -> None:
    positions = [place[text] for text in ticks]
    if numeric and positions and min(positions) > 0 and max(positions) / min(positions) >= _LOG_RATIO:
        axes.set_xscale("log")
        axes.minorticks_off()
    if not numeric or len(ticks) <= _MOST_TICKS:
        name_places(axes, positions, ticks)
    if not numeric:
        axes.set_xlim(-0.5, len(ticks) - 0.5)


def _ordered(values: Sequence[str]) -> list[str]:
    """Returns each value once: numbers by size, words as they come first, as `single, batch2, batch8` were typed."""
    once = list(dict.fromkeys(values))
    numbers = [as_number(text) for text in once]
    if any(number is None for number in numbers):
        return once
    return [text for _, text in sorted(zip(numbers, once, strict=True))]

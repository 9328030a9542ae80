"""Pictures of a comparison: curves overlaid, a metric against a key, a heat map of two keys."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes

from runner.compare.lines import Line, Stat, as_number
from runner.config.names import short_keys, varied_name
from runner.figures import save, subplots

_MOST_CURVES = 20
_MOST_SERIES = 10
_MOST_TICKS = 8
_LOG_RATIO = 8.0  # keys whose values span more than this are drawn on a log axis


def curves(path: Path, metric: str, histories: Mapping[str, Sequence[tuple[int, float]]]) -> None:
    """Draws a metric by step, one curve a run.

    Args:
      path: PNG file to write.
      metric: its name.
      histories: a run's label to its (step, value) points.
    """
    figure, axes = subplots(1, 1, figsize=(8.5, 4.6))
    shown = dict(list(histories.items())[:_MOST_CURVES])
    colours = _colours(len(shown))
    for index, (colour, (label, points)) in enumerate(zip(colours, shown.items(), strict=True)):
        steps, values = [step for step, _ in points], [value for _, value in points]
        marker = "o" if len(points) < 12 else None
        axes.plot(steps, values, color=colour, lw=_width(index, len(shown)), marker=marker, ms=4, label=label)
    axes.set_xlabel("training step")
    left_out = len(histories) - len(shown)
    axes.set_title(metric + (f" (the first {_MOST_CURVES} of {len(histories)} runs)" if left_out else ""))
    if "loss" in metric and all(value > 0 for points in shown.values() for _, value in points):
        axes.set_yscale("log")
    axes.grid(alpha=0.25)
    axes.legend(fontsize=8, loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False)
    save(figure, path)


def against(path: Path, metric: str, key: str, lines: Sequence[Line]) -> None:
    """Draws a metric against one key; lines that share the other keys are joined.

    Args:
      path: PNG file to write.
      metric: its name.
      key: one of the lines' keys.
      lines: those without the metric are left out.
    """
    series: dict[str, list[tuple[str, Stat]]] = {}
    crowded = len({_rest(line, key) for line in lines}) > _MOST_SERIES  # as of a search: points without names
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
        axes.errorbar(
            [place[text] for text, _ in points],
            [found.mean for _, found in points],
            yerr=errors if any(errors) else None,
            color=_colours(len(series))[index],
            marker="o",
            lw=0 if crowded else _width(index, len(series)) if numeric else 0.8,
            ms=6 + 5 * (1 - index / len(series)),
            capsize=3,
            label=label or None,
        )
    _name_ticks(axes, ticks, place, numeric=numeric)
    axes.set_xlabel(key)
    axes.set_title(f"{metric} by {short_keys([key])[key]}")
    axes.grid(alpha=0.25)
    if len(series) > 1:
        axes.legend(fontsize=8, loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False)
    save(figure, path)


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
            row, column = down.index(line.values.get(keys[0], "")), across.index(line.values.get(keys[1], ""))
            cells[row][column].append(line.metrics[metric].mean)
    grid = np.array([[np.mean(cell) if cell else np.nan for cell in row] for row in cells])
    figure, axes = subplots(1, 1, figsize=(2.6 + 1.1 * len(across), 1.8 + 0.7 * len(down)))
    image = axes.imshow(grid, cmap="viridis", aspect="auto")
    figure.colorbar(image, ax=axes, fraction=0.046, label=metric)
    axes.set_xticks(range(len(across)), across, rotation=30 if max(map(len, across)) > 6 else 0)
    axes.set_yticks(range(len(down)), down)
    axes.set_xlabel(keys[1])
    axes.set_ylabel(keys[0])
    finite = grid[np.isfinite(grid)]
    middle = float((finite.min() + finite.max()) / 2) if len(finite) else 0.0
    for row in range(len(down)):
        for column in range(len(across)):
            number = grid[row, column]
            text = "-" if math.isnan(number) else f"{number:.4g}"
            colour = "black" if math.isnan(number) or number > middle else "white"
            axes.text(column, row, text, ha="center", va="center", fontsize=9, color=colour)
    save(figure, path)


def _width(index: int, count: int) -> float:
    """Returns a line width that falls with the index, so that a curve on another one can be seen."""
    return 1.2 + 4.0 * (1 - index / max(count - 1, 1)) if count > 1 else 1.6


def _name_ticks(axes: Axes, ticks: Sequence[str], place: Mapping[str, float], *, numeric: bool) -> None:
    positions = [place[text] for text in ticks]
    if numeric and positions and min(positions) > 0 and max(positions) / min(positions) >= _LOG_RATIO:
        axes.set_xscale("log")
        axes.minorticks_off()
    if not numeric or len(ticks) <= _MOST_TICKS:
        turned = 30 if max(map(len, ticks), default=0) > 7 else 0
        axes.set_xticks(positions, ticks, rotation=turned, ha="right" if turned else "center")


def _ordered(values: Sequence[str]) -> list[str]:
    """Returns each value once: numbers by size, words as they come first, as `single, batch2, batch8` were typed."""
    once = list(dict.fromkeys(values))
    numbers = [as_number(text) for text in once]
    if any(number is None for number in numbers):
        return once
    return [text for _, text in sorted(zip(numbers, once, strict=True))]


def _colours(count: int) -> list[tuple[float, ...]]:
    if count <= 10:
        return [mpl.colormaps["tab10"](index) for index in range(count)]
    return [mpl.colormaps["viridis"](index / (count - 1)) for index in range(count)]

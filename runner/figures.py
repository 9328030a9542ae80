"""Every picture that the runner draws: without a display, on white, which any theme shows, and all names literally.

Callers pass numbers and words; what they mean is theirs. Colors mean the same in every picture.
"""

from __future__ import annotations

import itertools
import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.text import Text
from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter

from runner.host.terminal import clean

Array = npt.NDArray[Any]
# Options of Matplotlib, by name.
Options = dict[str, Any]
Rgb = tuple[float, float, float]

# Okabe and Ito's palette, whose colors color-blind people can tell apart, without yellow, which is invisible on white.
SERIES = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#4D4D4D")
TRAIN = SERIES[0]
EVALUATED = SERIES[1]
TRAIN_STEPS = "#A6CCE3"
# Context, such as runs that are not among the best.
OTHER = "#BDBDBD"
COMPUTE = "#545B63"
_LIMIT = "#C81E1E"
_GRAY = "#5F5F5F"
_EDGE = "#464646"
# Replicated variables.
_WHOLE = "#CCCFD4"
# One pair per axis of the mesh, in its order: the color of the first shard and that of the last. A shard along two
# axes has the product of their colors, like inks printed on top of each other: blue and pink give violets, in which
# both coordinates are visible.
_AXES = (("#DEEEFA", "#2176BD"), ("#FCE2EE", "#CD4C8C"), ("#FFF6D0", "#E9B01C"), ("#E2F3E0", "#46964A"))

# Sizes that keep a picture readable at the width of a page.
# Examples per row, and the characters of a name below one.
_EXAMPLES_PER_ROW = 6
_LONGEST_NAME = 17
# Curves with fewer points have markers: their lines alone would hide how few points there are.
_MANY_POINTS = 12
# Offset, dash and gap, in widths of the line.
_DASHED = (0, (4, 3))
# Values on an axis are labeled one by one; of more numbers, Matplotlib chooses some.
_MOST_TICKS = 8
# Inches of a plan's picture: its width, a line of a name, a bar with its gap, and the left edges of the columns.
_WIDTH = 11.8
_LINE = 0.155
_BAR = 0.34
_COLUMNS = (0.0, 4.6, 7.0, 9.2)
_LEGEND_COLUMNS = 4
# Smaller shards are drawn without an outline, which would cover them; and coordinates of an axis in the legend.
_FINE = 40
_MOST_COORDINATES = 16


def subplots(rows: int, columns: int, size: tuple[float, float]) -> tuple[Figure, Any]:
    """Returns a figure and its axes; the size is in inches."""
    figure = Figure(figsize=size, layout="constrained", facecolor="white")
    return figure, figure.subplots(rows, columns)


def save(figure: Figure, path: Path) -> None:
    """Writes a figure as PNG, its text literally, whatever a name contains."""
    for text in figure.findobj(Text):
        text.set_text(clean(text.get_text()))
        # `cost_$_per_$` is a name and no formula.
        text.set_parse_math(False)
    with rc_context({"text.parse_math": False}), warnings.catch_warnings():
        # Matplotlib warns of each character that its font lacks, and of long names that leave no room.
        warnings.simplefilter("ignore", UserWarning)
        # `savefig` would draw all of it twice if it had to lay the figure out, or to find its bounds.
        figure.set_dpi(110)
        layout = figure.get_layout_engine()
        if layout is not None:
            layout.execute(figure)
            figure.set_layout_engine(None)
        # Without these bounds, the label of a square plot would be cut off.
        bounds = figure.get_tightbbox().padded(0.12)
        figure.savefig(path, dpi=110, bbox_inches=bounds)


def short(name: str, longest: int = _LONGEST_NAME) -> str:
    """Returns a name that fits below an image, in one line that any font can draw."""
    name = clean(" ".join(name.split()))
    return name if len(name) <= longest else f"{name[: longest - 1]}…"


def ink(color: object) -> str:
    """Returns `black` or `white`, whichever is more readable on a color (WCAG 2.2).

    >>> ink("#12549e"), ink("#fcd49e")
    ('white', 'black')
    """
    parts = np.array(to_rgb(color))
    linear = np.where(parts <= 0.04, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)
    if np.dot((0.2126, 0.7152, 0.0722), linear) < 0.18:
        return "white"
    return "black"


def of_shard(axes: Mapping[str, int], place: Mapping[str, int]) -> Rgb:
    """Returns the color of a shard: `axes` are the mesh's names and sizes, `place` the coordinates of sharded ones."""
    if axes.keys().isdisjoint(place):
        return to_rgb(_WHOLE)
    color = np.ones(3)
    for (axis, size), ends in zip(axes.items(), itertools.cycle(_AXES)):
        if axis in place:
            first, last = np.array(list(map(to_rgb, ends)))
            color *= first + (last - first) * place[axis] / max(size - 1, 1)
    red, green, blue = color.tolist()
    return red, green, blue


def log_axis(axes: Axes) -> None:
    """Makes the y axis logarithmic, with plain numbers at 1, 2 and 5 of each decade."""
    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axes.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
    axes.yaxis.set_minor_formatter(NullFormatter())


def legend_right(axes: Axes) -> None:
    """Draws the legend to the right of the axes, where it hides no point."""
    axes.legend(fontsize=8, loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False)


# ----------------------------------------------------------------------------------- Curves, and a sweep's metric


@dataclass(frozen=True)
class Curve:
    """A line through points (x, value); without a label it has no entry in the legend."""

    label: str
    points: Sequence[tuple[float, float]]
    color: str = TRAIN
    marker: str = ""  # Matplotlib's, at every point; empty: only where there are few points
    width: float = 1.6
    dashed: bool = False  # so that both of two coinciding curves are visible


def curves(path: Path, panels: Mapping[str, Sequence[Curve]], along: str) -> None:
    """Draws one panel per metric, with a label along the horizontal axis."""
    columns = min(max(len(panels), 1), 2)
    rows = max(-(-len(panels) // 2), 1)
    figure, grid = subplots(rows, columns, (5.5 * columns + (2.0 if columns == 1 else 0.0), 4.2 * rows))
    flat = np.ravel(np.asarray(grid, object))
    entries: Options = {}
    for axes, (name, drawn) in zip(flat, panels.items(), strict=False):
        values: list[float] = []
        places: list[float] = [0.0]
        for curve in drawn:
            x, y = zip(*curve.points, strict=True)
            look: Options = {"color": curve.color, "lw": curve.width, "label": curve.label or None}
            if curve.marker:
                look |= {"marker": curve.marker, "ms": 5}
            elif len(x) < _MANY_POINTS:
                look |= {"marker": "o", "ms": 4}
            if curve.dashed:
                look["linestyle"] = _DASHED
            (line,) = axes.plot(x, y, zorder=1 + curve.width, **look)
            if curve.label:
                entries.setdefault(curve.label, line)
            values += y
            places += x
        axes.set(title=name, xlabel=along)
        # Ticks at whole epochs, unless there are hardly any.
        axes.xaxis.get_major_locator().set_params(integer=max(places) >= 2, nbins=8)
        axes.xaxis.set_major_formatter(StrMethodFormatter("{x:,.3g}" if max(places) < 100 else "{x:,.0f}"))
        axes.grid(alpha=0.25)
        if "loss" in name and min(values, default=0.0) > 0 and 3 * min(values) < max(values):
            # Below a factor of 3 a linear axis shows the same, and is easier to read.
            log_axis(axes)
    for axes in flat[len(panels) :]:
        axes.axis("off")
    if entries:
        ncols = 3 if max(map(len, entries)) <= 30 else 1
        figure.legend(entries.values(), entries, loc="outside lower center", ncols=ncols, frameon=False)
    save(figure, path)


def against(
    path: Path, metric: str, key: str, series: Mapping[str, Sequence[tuple[str, float]]], *, joined: bool = True
) -> None:
    """Draws a metric by the values of one key.

    Args:
      series: what is the same for some points, to their (value of the key, metric); at most seven.
      joined: connects numeric values.
    """
    texts = list(dict.fromkeys(text for points in series.values() for text, _ in points))
    numbers = list(map(_number, texts))
    is_numeric = all(map(math.isfinite, numbers))
    places = dict(zip(texts, numbers, strict=True))
    if not is_numeric:
        places = dict(zip(texts, map(float, range(len(texts))), strict=True))
    figure, axes = subplots(1, 1, (7.5, 4.4))
    for index, (label, points) in enumerate(series.items()):
        placed = [(places[text], value) for text, value in points]
        x, y = zip(*sorted(placed, key=lambda point: point[0]), strict=True)
        look: Options = {"color": SERIES[index], "marker": "o", "ms": 6, "lw": 1.6, "label": label or None}
        if not (is_numeric and joined):
            look["lw"] = 0.0
        if index % 2:
            look["linestyle"] = _DASHED
        axes.plot(x, y, alpha=0.85, **look)
    if is_numeric and min(numbers, default=0.0) > 0 and max(numbers) >= 8 * min(numbers):
        # Sweeps usually double, or go by tens.
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
        axes.minorticks_off()
    if not is_numeric or len(texts) <= _MOST_TICKS:
        turned: Options = {}
        if max(map(len, texts), default=0) > 7:
            # The end of a rotated name is below its position.
            turned = {"rotation": 30, "ha": "right"}
        axes.set_xticks(list(places.values()), [short(text, 30) for text in texts], **turned)
    if not is_numeric:
        axes.set_xlim(-0.5, len(texts) - 0.5)
    axes.set(xlabel=key, title=f"{metric} by {key.rpartition('.')[2]}")
    axes.grid(alpha=0.25)
    if len(series) > 1:
        legend_right(axes)
    save(figure, path)


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan


# ---------------------------------------------------------------------------------------------- Plan and advice


@dataclass(frozen=True)
class Bars:
    """Bars of parts that follow each other, all to one scale."""

    heading: str
    unit: str
    rows: Mapping[str, Sequence[tuple[str, float]]]  # name of a bar to (part, amount in the unit)
    parts: Mapping[str, tuple[str, str]]  # part to its words in the legend and its color
    limit: float = 0.0  # a red line at this amount; 0: none


@dataclass(frozen=True)
class Sharded:
    """A variable, or equal ones of several blocks."""

    path: str  # in one or more lines
    details: str  # shape, dtype and spec in words
    shape: Sequence[int]
    spec: Sequence[str | None]
    bytes: int
    bytes_per_device: int
    words: str  # both in words, and into how many shards, in two lines


def plan(
    path: Path,
    title: str,
    charts: Sequence[Bars],
    axes: Mapping[str, int],
    names: Sequence[str],
    rows: Sequence[Sharded],
) -> None:
    """Draws a plan: the memory of a device, the timeline of a step, and every variable's shards.

    The shards are colored by the mesh coordinates that they are on. A bar beside each variable shows its bytes, all to
    one scale; the dark part is on one device. `names` are those of the mesh's axes as the legend has them.
    """
    # All lengths are in inches, so that a row is as tall as its text whatever else the picture has.
    head = 0.3 * (title.count("\n") + 1)
    tops = list(itertools.accumulate((head, *map(_height, charts))))
    lengths = [_LINE * row.path.count("\n") + 0.52 for row in rows]
    table = 0.27 * (len(axes) + 2) + 0.3 + sum(lengths)
    height = tops[-1] + table
    figure = Figure(figsize=(_WIDTH, height), facecolor="white")
    figure.text(0.0, 1.0, title, va="top", fontsize=12, fontweight="bold")
    for top, chart in zip(tops, charts, strict=False):
        bars_height = _BAR * len(chart.rows)
        bottom = height - top - 0.35 - bars_height
        panel = figure.add_axes((1.3 / _WIDTH, bottom / height, (_WIDTH - 1.3) / _WIDTH, bars_height / height))
        _draw_bars(panel, chart)
    panel = figure.add_axes((0.0, 0.0, 1.0, table / height), frameon=False, xticks=[], yticks=[])
    panel.set(xlim=(0, _WIDTH), ylim=(table, 0))
    _draw_variables(panel, axes, names, rows, lengths)
    save(figure, path)


def _height(chart: Bars) -> float:
    """Returns the inches of bars with heading, scale and legend."""
    return 0.9 + _BAR * len(chart.rows) + 0.2 * -(-len(chart.parts) // _LEGEND_COLUMNS)


def _draw_bars(axes: Axes, chart: Bars) -> None:
    entries: Options = {}
    for row, parts in enumerate(chart.rows.values()):
        start = 0.0
        for part, amount in parts:
            words, color = chart.parts[part]
            entries[words] = axes.barh([row], [amount], left=start, height=0.7, color=color, edgecolor=_EDGE, lw=0.5)
            start += amount
    axes.set_yticks(range(len(chart.rows)), list(chart.rows))
    axes.set_ylim(len(chart.rows) - 0.5, -0.5)
    axes.set_title(chart.heading, loc="left", fontsize=10, fontweight="bold")
    axes.tick_params(axis="y", length=0, labelsize=8)
    axes.tick_params(axis="x", labelsize=8)
    if chart.limit:
        axes.axvline(chart.limit, color=_LIMIT, lw=3)
    axes.set_xlim(left=0)
    # The scale's unit is to the right of its numbers, where it takes no line.
    axes.set_xlabel(chart.unit, fontsize=8, loc="right", labelpad=-2)
    axes.spines[["top", "right", "left"]].set_visible(False)
    if entries:
        below = -0.3 / (_BAR * len(chart.rows))
        place: Options = {"loc": "upper left", "bbox_to_anchor": (0.0, below), "borderaxespad": 0.0}
        axes.legend(
            entries.values(), entries, fontsize=8, ncols=_LEGEND_COLUMNS, frameon=False, handlelength=1.2, **place
        )


def _draw_variables(
    axes: Axes, mesh: Mapping[str, int], names: Sequence[str], rows: Sequence[Sharded], lengths: Sequence[float]
) -> None:
    line = 0.27
    for index, (name, (axis, size)) in enumerate(zip(names, mesh.items(), strict=True)):
        middle = line * (index + 0.5)
        axes.text(0.0, middle, name, va="center", fontsize=9)
        for place in range(min(size, _MOST_COORDINATES)):
            color = of_shard(mesh, {axis: place})
            x = _COLUMNS[1] + 0.24 * place
            axes.add_patch(Rectangle((x, middle - 0.1), 0.22, 0.2, facecolor=color, edgecolor=_EDGE, lw=0.6))
            axes.text(x + 0.11, middle, str(place), va="center", ha="center", fontsize=7, color=ink(color))
    words = "gray: replicated"
    if len(mesh) > 1:
        words += "; mixed: sharded over several axes"
    top = line * len(mesh)
    axes.text(_COLUMNS[1], top + 0.5 * line, words, va="center", fontsize=8, color=_GRAY)
    headings = ("variable", "shards, not to scale", "bytes (dark: one device)", "per device")
    for left, heading in zip(_COLUMNS, headings, strict=True):
        axes.text(left, top + 1.6 * line, heading, va="center", fontsize=9, color=_GRAY)
    top += 2 * line + 0.03
    axes.plot((0, _WIDTH), (top, top), color=OTHER, lw=0.8)
    top += 0.16
    most = max((row.bytes for row in rows), default=0) or 1
    for row, length in zip(rows, lengths, strict=True):
        axes.text(0, top, row.path, va="top", fontsize=9, fontweight="bold")
        below = top + 0.2 + _LINE * row.path.count("\n")
        axes.text(0, below, row.details, va="top", fontsize=8, color=_GRAY)
        middle = top + 0.17
        _draw_shards(axes, mesh, row, middle)
        for count, fill in ((row.bytes, "#D6DADF"), (row.bytes_per_device, COMPUTE)):
            length_of_bar = max(1.9 * count / most, 0.01)
            axes.add_patch(Rectangle((_COLUMNS[2], middle - 0.07), length_of_bar, 0.14, color=fill, lw=0))
        sizes, _, words = row.words.partition("\n")
        axes.text(_COLUMNS[3], top, sizes, va="top", fontsize=9)
        axes.text(_COLUMNS[3], top + 0.2, words, va="top", fontsize=8, color=_GRAY)
        top += length


def _draw_shards(axes: Axes, mesh: Mapping[str, int], row: Sharded, middle: float) -> None:
    """Draws a variable as a grid of its shards.

    A rectangle has two sides: it shows the dims that are sharded and, if these are fewer than two, the largest others.
    """
    left = _COLUMNS[1]
    width = 1.9
    spec = row.spec
    by_importance = sorted(range(len(spec)), key=lambda dim: (spec[dim] is None, -row.shape[dim]))
    shown = [spec[dim] for dim in sorted(by_importance[: max(2, len(spec) - list(spec).count(None))])]
    # A single dim goes across; of several the first goes down.
    height = 0.14
    down: list[dict[str, int]] = [{}]
    across = _places(mesh, shown)
    if len(shown) > 1:
        height = 0.3
        down = _places(mesh, shown[:1])
        across = _places(mesh, shown[1:])
    top = middle - height / 2
    is_fine = len(across) > _FINE or len(down) > _FINE // 8
    for (index, one), (column, other) in itertools.product(enumerate(down), enumerate(across)):
        color = of_shard(mesh, {**one, **other})
        corner = (left + width * column / len(across), top + height * index / len(down))
        patch = Rectangle(corner, width / len(across), height / len(down), facecolor=color, edgecolor=_EDGE, lw=0.6)
        if is_fine:
            patch.set_edgecolor(color)
        axes.add_patch(patch)
    axes.add_patch(Rectangle((left, top), width, height, fill=False, edgecolor=_EDGE, lw=0.8))


def _places(mesh: Mapping[str, int], axes: Sequence[str | None]) -> list[dict[str, int]]:
    """Returns the mesh coordinates of the shards that axes make."""
    named = list(filter(None, axes))
    ranges = [range(mesh[axis]) for axis in named]
    return [dict(zip(named, place, strict=True)) for place in itertools.product(*ranges)]


def front(
    path: Path,
    title: str,
    series: Mapping[str, tuple[str, str, Sequence[tuple[float, float]]]],
    unbeaten: Sequence[tuple[float, float]],
    best: tuple[str, tuple[float, float]],
    capacity: float,
) -> None:
    """Draws memory per device in GiB against step time in ms, with the front that no candidate beats in both.

    Args:
      series: name to the color, the marker and the (memory, time) of candidates.
      unbeaten: the front, by memory.
      capacity: of one device's memory, where a line is and twice of which ends the axis; 0: not known.
    """
    figure, axes = subplots(1, 1, (8.6, 5.2))
    beyond = 0
    for name, (color, marker, points) in series.items():
        shown = [point for point in points if not capacity or point[0] <= 2 * capacity]
        beyond += len(points) - len(shown)
        if shown:
            axes.scatter(*zip(*shown, strict=True), color=color, marker=marker, alpha=0.75, label=name, s=30)
    if unbeaten:
        # In steps: with less memory than the next candidate needs, only the one before it can be used.
        look: Options = {"color": OTHER, "zorder": 0, "drawstyle": "steps-post"}
        axes.plot(*zip(*unbeaten, strict=True), label="no candidate beats these", **look)
    name, place = best
    # The plate is behind the name, so that points below it don't cover it.
    plate = {"facecolor": "white", "edgecolor": "none", "alpha": 0.8, "pad": 1}
    axes.annotate(name, place, xytext=(10, 6), textcoords="offset points", fontweight="bold", bbox=plate)
    axes.scatter(*place, s=150, facecolors="none", edgecolors="black")
    label = "memory of one device at the peak of a step, GiB"
    if capacity:
        axes.axvline(capacity, color="black", linestyle="--", linewidth=1, label="memory that a program can use")
    if beyond:
        axes.set_xlim(right=2 * capacity)
        label += f"\n({beyond} candidates with more than twice a device's are not shown)"
    axes.set_xlim(left=0)
    log_axis(axes)
    axes.set(xlabel=label, ylabel="step time, ms (middle of the range)", title=title)
    axes.grid(alpha=0.25, which="both")
    legend_right(axes)
    save(figure, path)


# ------------------------------------------------------------------------------------- Examples and predictions


def examples(path: Path, images: Array, captions: Sequence[tuple[str, str]], title: str) -> None:
    """Draws images (n, H, W, C) side by side, each with a caption in black and one in orange, of any lines."""
    count = len(images)
    columns = min(_EXAMPLES_PER_ROW, max(count, 3))
    rows = max(-(-count // _EXAMPLES_PER_ROW), 1)
    lines = max((f"{black}\n{red}".strip("\n").count("\n") + 1 for black, red in captions), default=1)
    step = 1.0 + 0.14 * lines
    figure, axes = subplots(1, 1, (1.55 * columns + 0.2, 1.55 * step * rows + 0.6))
    axes.set(xlim=(-0.02, columns + 0.02), ylim=(rows * step, -0.02), aspect="equal")
    axes.set(xticks=[], yticks=[], frame_on=False)
    axes.set_title(title, fontsize=10)
    for index, (image, (black, red)) in enumerate(zip(images, captions, strict=True)):
        x = index % _EXAMPLES_PER_ROW + 0.04
        y = index // _EXAMPLES_PER_ROW * step
        image_at(axes, image, (x, x + 0.92, y + 0.92, y))
        axes.text(x + 0.46, y + 0.95, black, ha="center", va="top", fontsize=8)
        offset = 0.14 * (black.count("\n") + 1)
        axes.text(x + 0.46, y + 0.95 + offset, red, ha="center", va="top", fontsize=8, color=EVALUATED)
    if not count:
        axes.text(columns / 2, 0.5, "none", ha="center", va="center", fontsize=12)
    save(figure, path)


def image_at(axes: Axes, image: Array, extent: tuple[float, float, float, float]) -> None:
    """Draws an image (H, W, C) into a part of the axes: in color if it has 3 or 4 channels, else its first in gray."""
    values = image.astype(np.float64)
    if image.dtype == np.uint8:
        values /= 255.0
    if values.min(initial=0.0) < 0.0 or values.max(initial=0.0) > 1.0:
        # Standardized, or of a type with other bounds.
        values = (values - values.min()) / max(float(values.max() - values.min()), 1e-12)
    if values.shape[-1] not in (3, 4):
        values = values[..., 0]
    axes.imshow(values, cmap="gray", vmin=0, vmax=1, extent=extent, interpolation="nearest", aspect="auto")

"""Figures, drawn without a display, and the axes that they share. White behind, so that either theme shows them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, LogLocator, NullFormatter, StrMethodFormatter

from runner.report.palette import ink_on

Numbers = npt.NDArray[np.float64]
_LAST_TENTH = 0.9
# Of a share's axis, the first wanted first.
_TICKS = (1.0, 0.9, 0.99, 0.999, 0.9999, 0.95, 0.98, 0.8, 0.5, 0.995, 0.998, 0.9995, 0.0, 0.96, 0.97, 0.7, 0.2)
_TICKS_BETWEEN = (0.85, 0.92, 0.94, 0.6, 0.965, 0.975, 0.93, 0.985, 0.992, 0.4)
_APART = 0.055  # of the axis's length, between two ticks
_EDGE = 0.05  # of the axis's length, left free beyond the values


def subplots(rows: int, columns: int, figsize: tuple[float, float]) -> tuple[Figure, Any]:
    """Returns a figure and its axes; `figsize` is in inches."""
    figure = Figure(figsize=figsize, layout="constrained", facecolor="white")
    return figure, figure.subplots(rows, columns)


def save(figure: Figure, path: Path) -> None:
    """Writes a figure as PNG."""
    figure.savefig(path, dpi=110, bbox_inches="tight", pad_inches=0.12)  # else a square plot's label is cut


def ink(color: object) -> str:
    """Returns `black` or `white`, whichever is read on a Matplotlib color."""
    red, green, blue = (round(255 * part) for part in to_rgb(color))
    return ink_on((red, green, blue))


def log_axis(axes: Axes) -> None:
    """Makes the y axis logarithmic, with plain numbers at 1, 2 and 5 of each decade."""
    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axes.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
    axes.yaxis.set_minor_formatter(NullFormatter())


def show_last_tenth(axes: Axes, values: Iterable[float], *, rises: bool) -> None:
    """Spaces the y axis of a share by the logarithm of what it lacks to 1, where its values reach the last tenth.

    Of a run that begins at 0.1 and ends at 0.98, an even axis shows the first epoch and nothing else. What is no
    share of 1, and one whose values lie all below or all in the last tenth, keeps its even axis.

    Args:
      axes: drawn.
      values: that are drawn.
      rises: more of the metric is better, up to 1 of a share.
    """
    found = np.array([value for value in values if math.isfinite(value)])
    if not rises or not len(found):
        return
    low = float(found.min())
    high = float(found.max())
    if low < 0 or high > 1 or not low < _LAST_TENTH <= high:
        return
    lacking = 1 - found[found < 1]
    least = max(float(lacking.min()), 1e-5) / 2  # a share of 1 lacks nothing, and has no logarithm

    def forward(share: npt.ArrayLike) -> Numbers:
        return -np.log10(np.maximum(1 + least - np.asarray(share, float), least / 4))

    def inverse(place: npt.ArrayLike) -> Numbers:
        return 1 + least - 10 ** -np.asarray(place, float)

    axes.set_yscale("function", functions=(forward, inverse))
    bottom = float(forward(low))
    top = float(forward(high))
    length = (top - bottom) * (1 + 2 * _EDGE)
    edge = _EDGE * length
    highest = float(forward(1.0))
    axes.set_ylim(float(inverse(bottom - edge)), float(inverse(min(top, highest) + edge)))
    ticks: dict[float, float] = {}  # to its place
    for tick in (*_TICKS, *_TICKS_BETWEEN):
        place = float(forward(tick))
        apart = min((abs(place - other) for other in ticks.values()), default=math.inf)
        if bottom - edge <= place <= top + edge and apart >= _APART * length:
            ticks[tick] = place
    axes.yaxis.set_major_locator(FixedLocator(list(ticks)))
    axes.yaxis.set_minor_locator(FixedLocator([]))
    axes.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
    axes.set_ylabel("spaced by the logarithm of 1 - value")


def name_places(axes: Axes, positions: Sequence[float], names: Sequence[str]) -> None:
    """Names places of the x axis, turned where the names are long."""
    turned = 30 if max(map(len, names), default=0) > 7 else 0
    axes.set_xticks(list(positions), list(names), rotation=turned, ha="right" if turned else "center")

"""Figures drawn without a display, and the axes that they share.

Their background is white, so that any theme shows them.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.text import Text
from matplotlib.ticker import FixedLocator, LogLocator, NullFormatter, StrMethodFormatter

from runner.host.terminal import clean
from runner.report.palette import ink_on

Numbers = npt.NDArray[np.float64]
_LAST_TENTH = 0.9
# Ticks of the axis of a fraction, in order of preference. The second list fills gaps, if there are any.
_TICKS = (1.0, 0.9, 0.99, 0.999, 0.9999, 0.95, 0.98, 0.8, 0.5, 0.995, 0.998, 0.9995, 0.0, 0.96, 0.97, 0.7, 0.2)
_FILLING_TICKS = (0.85, 0.92, 0.94, 0.6, 0.965, 0.975, 0.93, 0.985, 0.992, 0.4)
# Smallest distance of two ticks, as a fraction of the axis, so that their labels don't overlap.
_MIN_TICK_DISTANCE = 0.055
# Margin beyond the values, as a fraction of the axis (Matplotlib's own).
_MARGIN = 0.05
# Smallest difference to 1 that is resolved: beyond it a fraction of 10,000 examples has no values.
_MIN_REMAINDER = 1e-5
# Longer names on the x axis are rotated, because they would touch each other.
_MAX_NAME_LENGTH = 7


def subplots(rows: int, columns: int, figsize: tuple[float, float]) -> tuple[Figure, Any]:
    """Returns a figure and its axes; `figsize` is in inches."""
    figure = Figure(figsize=figsize, layout="constrained", facecolor="white")
    return figure, figure.subplots(rows, columns)


def save(figure: Figure, path: Path) -> None:
    """Writes a figure as PNG, its text literally, whatever a name contains."""
    for text in figure.findobj(Text):
        assert isinstance(text, Text)
        text.set_text(clean(text.get_text()))
        # `cost_$_per_$` is a name and no formula.
        text.set_parse_math(False)
    with rc_context({"text.parse_math": False}), warnings.catch_warnings():
        # Matplotlib warns of each character that its font lacks, and of long names that leave no room.
        warnings.simplefilter("ignore", UserWarning)
        # Without `tight`, the label of a square plot would be cut off.
        figure.savefig(path, dpi=110, bbox_inches="tight", pad_inches=0.12)


def ink(color: object) -> str:
    """Returns `black` or `white`, whichever is more readable on a Matplotlib color."""
    red, green, blue = to_rgb(color)
    return ink_on((round(255 * red), round(255 * green), round(255 * blue)))


def log_axis(axes: Axes) -> None:
    """Makes the y axis logarithmic, with plain numbers at 1, 2 and 5 of each decade."""
    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axes.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
    axes.yaxis.set_minor_formatter(NullFormatter())


def show_last_tenth(axes: Axes, values: Iterable[float], *, rises: bool) -> None:
    """Makes the y axis of a fraction near 1 logarithmic in 1 - value.

    That is for values that end in the last tenth below 1.

    On a linear axis, a run that begins at 0.1 and ends at 0.98 shows its first epoch and nothing else. The axis stays
    linear for values that are not fractions of 1, and if all of them are below or all in the last tenth.

    Args:
      axes: the axes, with everything drawn.
      values: the values that are drawn.
      rises: higher values are better, up to 1.
    """
    finite = np.array([value for value in values if math.isfinite(value)])
    if not rises or not len(finite):
        return
    low = float(finite.min())
    high = float(finite.max())
    if low < 0 or high > 1 or not low < _LAST_TENTH <= high:
        return
    remainders = 1 - finite[finite < 1]
    # Added to 1 - value, because a value of 1 has no logarithm.
    shift = max(float(remainders.min()), _MIN_REMAINDER) / 2

    def forward(value: npt.ArrayLike) -> Numbers:
        # The lower bound keeps the margin above 1 finite.
        return -np.log10(np.maximum(1 + shift - np.asarray(value, float), shift / 4))

    def inverse(position: npt.ArrayLike) -> Numbers:
        return 1 + shift - 10 ** -np.asarray(position, float)

    axes.set_yscale("function", functions=(forward, inverse))
    bottom = float(forward(low))
    top = float(forward(high))
    length = (top - bottom) * (1 + 2 * _MARGIN)
    margin = _MARGIN * length
    highest = min(top, float(forward(1.0)))
    axes.set_ylim(float(inverse(bottom - margin)), float(inverse(highest + margin)))
    positions: dict[float, float] = {}
    for tick in (*_TICKS, *_FILLING_TICKS):
        position = float(forward(tick))
        distance = min((abs(position - other) for other in positions.values()), default=math.inf)
        if bottom - margin <= position <= top + margin and distance >= _MIN_TICK_DISTANCE * length:
            positions[tick] = position
    axes.yaxis.set_major_locator(FixedLocator(list(positions)))
    axes.yaxis.set_minor_locator(FixedLocator([]))
    axes.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
    axes.set_ylabel("spaced by the logarithm of 1 - value")


def name_places(axes: Axes, positions: Sequence[float], names: Sequence[str]) -> None:
    """Labels positions of the x axis, rotated if the names are long."""
    rotation = 0
    alignment = "center"
    if max(map(len, names), default=0) > _MAX_NAME_LENGTH:
        rotation = 30
        # The end of a rotated name is below its position.
        alignment = "right"
    axes.set_xticks(list(positions), [clean(name) for name in names], rotation=rotation, ha=alignment)

"""A picture of a plan: every variable cut into its shards, coloured by the mesh coordinates that hold them."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from runner import mesh
from runner.plan import rows
from runner.plan.base import Plan, VariablePlan

_MOST = 24  # variables drawn, the largest
_ROW, _HEAD = 0.56, 1.15  # inches
_WIDTH = 11.0
_LEFT, _MIDDLE, _RIGHT = 0.15, 4.9, 8.0  # inches where labels, rectangles and numbers begin
_COPIES = 3  # sheets drawn behind a variable's face where more devices hold the same
_EVERYWHERE = (0.80, 0.81, 0.83)
# Light to dark, one pair an axis of the mesh, in its order; a part cut over two axes mixes their colours.
_AXES = (
    ((0.74, 0.86, 0.96), (0.07, 0.33, 0.62)),
    ((0.99, 0.83, 0.62), (0.80, 0.33, 0.05)),
    ((0.77, 0.91, 0.74), (0.10, 0.45, 0.20)),
    ((0.86, 0.80, 0.93), (0.38, 0.17, 0.55)),
)
Colour = tuple[float, float, float]


def draw(plan: Plan, path: Path) -> None:
    """Draws the variables that take most bytes, at most 24.

    Args:
      plan: what to draw.
      path: PNG file to write.
    """
    # Not pyplot, whose figures belong to the whole process.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    largest = sorted(plan.variables, key=lambda each: -each.bytes)[:_MOST]
    shown = [each for each in plan.variables if each in largest]
    height = _HEAD + _ROW * len(shown) + 0.15
    figure = Figure(figsize=(_WIDTH, height), dpi=110)
    canvas = figure.add_axes((0, 0, 1, 1))
    canvas.set_xlim(0, _WIDTH)
    canvas.set_ylim(height, 0)
    canvas.axis("off")
    _head(canvas, plan, len(shown))
    for index, variable in enumerate(shown):
        _row(canvas, plan, variable, _HEAD + _ROW * (index + 0.5))
    FigureCanvasAgg(figure).print_png(path)


def colour(axes: Mapping[str, int], place: Mapping[str, int]) -> Colour:
    """Returns the colour of a part that lies at some coordinates: each axis's own, mixed where there are several.

    Args:
      axes: the mesh's, name to size.
      place: axis to coordinate, of the axes that cut the variable.
    """
    found = []
    for index, (axis, count) in enumerate(axes.items()):
        if axis in place:
            light, dark = _AXES[index % len(_AXES)]
            share = place[axis] / max(count - 1, 1)
            found.append([a + (b - a) * share for a, b in zip(light, dark, strict=True)])
    if not found:
        return _EVERYWHERE
    red, green, blue = (sum(part) / len(found) for part in zip(*found, strict=True))
    return red, green, blue


def _head(canvas: Any, plan: Plan, shown: int) -> None:
    every = len(plan.variables)
    first = "variable" if shown == every else f"variable (the {shown} largest of {every})"
    canvas.text(_LEFT, 0.26, rows.title(plan), fontsize=11, fontweight="bold", va="center")
    x = _LEFT
    for axis, count in plan.axes.items():
        canvas.text(x, 0.56, f"{axis}={count}", fontsize=9, va="center")
        x += 0.12 + 0.085 * len(f"{axis}={count}")
        for index in range(min(count, 16)):
            _box(canvas, x, 0.47, 0.17, 0.18, colour(plan.axes, {axis: index}))
            canvas.text(
                x + 0.085, 0.565, str(index), fontsize=6.5, va="center", ha="center",
                color="white" if index > (count - 1) / 2 else "0.2",
            )  # fmt: skip
            x += 0.19
        x += 0.2
    _box(canvas, x, 0.47, 0.17, 0.18, _EVERYWHERE)
    mixed = "; mixed: cut over two axes" if len(plan.axes) > 1 else ""
    canvas.text(x + 0.25, 0.56, f"whole{mixed}; sheets behind: copies", fontsize=9, va="center")
    for x, text in ((_LEFT, first), (_MIDDLE, "parts"), (_RIGHT, "a device holds")):
        canvas.text(x, 0.92, text, fontsize=8.5, color="0.35", va="center")
    canvas.plot([_LEFT, _WIDTH - 0.15], [1.05, 1.05], color="0.75", lw=0.8)


def _row(canvas: Any, plan: Plan, variable: VariablePlan, middle: float) -> None:
    path = variable.path if len(variable.path) <= 46 else "..." + variable.path[-43:]
    canvas.text(_LEFT, middle - 0.11, path, fontsize=9.5, fontweight="bold", va="center")
    about = f"{rows.dims(variable.shape)}  {variable.dtype}  {rows.spec_words(variable.spec)}"
    canvas.text(_LEFT, middle + 0.11, about, fontsize=8, color="0.35", va="center")
    parts = math.prod(plan.axes[axis] for axis in variable.spec if axis)
    copies = mesh.size(dict(plan.axes)) // parts
    _shards(canvas, plan, variable, middle, copies)
    held = f"{rows.size(variable.bytes_per_device)} of {rows.size(variable.bytes)}"
    canvas.text(_RIGHT, middle - 0.11, held, fontsize=9, va="center")
    words = "whole" if parts == 1 else f"one of {parts} parts"
    many = f"{words}, {copies} copies" if copies > 1 else words
    canvas.text(_RIGHT, middle + 0.11, many, fontsize=8, color="0.35", va="center")


def _shards(canvas: Any, plan: Plan, variable: VariablePlan, middle: float, copies: int) -> None:
    """Draws two dims of a variable, those that are cut before those that are not, larger before smaller."""
    dims = sorted(range(len(variable.shape)), key=lambda d: (variable.spec[d] is None, -variable.shape[d]))[:2]
    dims.sort()
    down, across = (dims[0], dims[1]) if len(dims) == 2 else (None, dims[0] if dims else None)
    height = _extent(variable.shape[down], 0.42) if down is not None else 0.10
    width = _extent(variable.shape[across], 2.6) if across is not None else 0.10
    top = middle - height / 2
    for sheet in reversed(range(1, min(copies, _COPIES + 1))):
        _box(canvas, _MIDDLE + 0.045 * sheet, top - 0.03 * sheet, width, height, (0.95, 0.95, 0.95), edge="0.6")
    cut_down, cut_across = (variable.spec[d] if d is not None else None for d in (down, across))
    tall, wide = (plan.axes[axis] if axis else 1 for axis in (cut_down, cut_across))
    for i, j in itertools.product(range(tall), range(wide)):
        place = {axis: at for axis, at in ((cut_down, i), (cut_across, j)) if axis}
        x, y = _MIDDLE + j * width / wide, top + i * height / tall
        _box(canvas, x, y, width / wide, height / tall, colour(plan.axes, place))


def _extent(dim: int, most: float) -> float:
    """Returns inches for a dim: by its logarithm, so that 10 and 4,096 are both seen."""
    return most * max(0.15, min(1.0, math.log2(dim + 1) / 12))


def _box(canvas: Any, x: float, y: float, width: float, height: float, face: Colour, edge: str = "0.25") -> None:
    from matplotlib.patches import Rectangle

    canvas.add_patch(Rectangle((x, y), width, height, facecolor=face, edgecolor=edge, linewidth=0.5))

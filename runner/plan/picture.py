"""A picture of a plan: every variable cut into its shards, coloured by the mesh coordinates that hold them.

Drawn by Pillow: Matplotlib would take a third of the plan's own time.
"""

from __future__ import annotations

import functools
import importlib.util
import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from PIL import Image, ImageDraw, ImageFont

from runner import mesh
from runner.plan import rows
from runner.plan.base import Plan, VariablePlan

_MOST = 48  # variables drawn, the largest
_WIDTH, _MARGIN = 1210, 16  # pixels, as all below
_MIDDLE, _RIGHT = 545, 880  # where rectangles and numbers begin
_LINE, _GAP = 21, 13  # a line of text, what is left free between two variables
_TALL, _WIDE = 44, 285  # the largest rectangle
_CELL = 5  # the smallest part with an outline of its own
_COPIES = 3  # sheets drawn behind a variable's face where more devices hold the same
_SHEET = (5, 4)  # how far a sheet lies to the right and up
_LEGEND = 16  # coordinates of an axis that are shown
_TITLE, _PATH, _TEXT, _SMALL, _TINY = 18, 15, 15, 13, 10
_INK, _GREY, _EDGE, _BACK, _COPY = (25, 25, 25), (95, 95, 95), (70, 70, 70), (160, 160, 160), (244, 244, 244)
_EVERYWHERE = (204, 207, 212)
# Light to dark, one pair an axis of the mesh, in its order; a part cut over two axes mixes their colours.
_AXES = (
    ((189, 219, 245), (18, 84, 158)),
    ((252, 212, 158), (204, 84, 13)),
    ((196, 232, 189), (26, 115, 51)),
    ((219, 204, 237), (97, 43, 140)),
)
Colour = tuple[int, int, int]


def draw(plan: Plan, path: Path) -> None:
    """Draws the variables that take most bytes, at most 48.

    Args:
      plan: what to draw.
      path: PNG file to write.
    """
    largest = sorted(plan.variables, key=lambda each: -each.bytes)[:_MOST]
    shown = [_row(each) for each in plan.variables if each in largest]
    title = _wrapped(rows.title(plan), ", ", _WIDTH - 2 * _MARGIN, _TITLE, bold=True)
    legend = _legend(plan)
    head = 2 * _MARGIN + _LINE * (len(title) + len(legend)) + 12 * len(legend)
    height = head + _LINE + _GAP + sum(row.height for row in shown) + _MARGIN
    image = Image.new("RGB", (_WIDTH, height), "white")
    canvas = ImageDraw.Draw(image)
    _head(canvas, title, legend)
    every = len(plan.variables)
    first = "variable" if len(shown) == every else f"variable (the {len(shown)} largest of {every})"
    for x, text in ((_MARGIN, first), (_MIDDLE, "parts"), (_RIGHT, "a device holds")):
        _text(canvas, x, head, text, _SMALL, _GREY)
    canvas.line((_MARGIN, head + _LINE, _WIDTH - _MARGIN, head + _LINE), fill=_BACK)
    y = head + _LINE + _GAP
    for row in shown:
        _draw_row(canvas, plan, row, y)
        y += row.height
    image.save(path, compress_level=3)


@dataclass(frozen=True)
class _Row:
    """A variable, and its path and form in lines that fit the column."""

    variable: VariablePlan
    path: Sequence[str]
    form: Sequence[str]

    @property
    def height(self) -> int:
        """Returns the pixels from this variable to the next."""
        return _LINE * (len(self.path) + len(self.form)) + _GAP


def _row(variable: VariablePlan) -> _Row:
    room = _MIDDLE - 2 * _MARGIN
    form = f"{rows.dims(variable.shape)}  {variable.dtype}  {rows.spec_words(variable.spec)}"
    path = rows.broken(variable.path, lambda line: _length(line, _PATH, bold=True) <= room, "    ")
    shown = [_shortened(line, room, _PATH, bold=True) for line in path]
    return _Row(variable, shown, _wrapped(form, "  ", room, _SMALL))


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
    red, green, blue = (round(sum(part) / len(found)) for part in zip(*found, strict=True))
    return red, green, blue


def _legend(plan: Plan) -> list[list[tuple[str, list[tuple[str, Colour]]]]]:
    """Returns lines of (words, boxes with their numbers), as many on a line as fit."""
    entries = []
    for axis, count in plan.axes.items():
        boxes = [(str(at), colour(plan.axes, {axis: at})) for at in range(min(count, _LEGEND))]
        link = f" {rows.NETWORK}" if axis in plan.crossing else ""
        entries.append((f"{axis}={count}{link}", boxes))
    mixed = "; mixed: cut over several axes" if len(plan.axes) > 1 else ""
    entries.append((f"grey: whole{mixed}; sheets behind: copies", []))
    lines: list[list[tuple[str, list[tuple[str, Colour]]]]] = [[]]
    for entry in entries:
        used = sum(_legend_width(*each) for each in lines[-1])
        if lines[-1] and used + _legend_width(*entry) > _WIDTH - 2 * _MARGIN:
            lines.append([])
        lines[-1].append(entry)
    return lines


def _legend_width(words: str, boxes: Sequence[tuple[str, Colour]]) -> int:
    return _length(words, _TEXT) + 8 + 22 * len(boxes) + 22


def _head(
    canvas: ImageDraw.ImageDraw, title: Sequence[str], legend: Sequence[Sequence[tuple[str, list[tuple[str, Colour]]]]]
) -> None:
    y = _MARGIN
    for line in title:
        _text(canvas, _MARGIN, y, line, _TITLE, bold=True)
        y += _LINE
    for entries in legend:
        x, y = _MARGIN, y + 12
        for words, boxes in entries:
            _text(canvas, x, y, words, _TEXT)
            start = x + _length(words, _TEXT) + 8
            for index, (number, face) in enumerate(boxes):
                _box(canvas, start + 22 * index, y, 20, 20, face)
                light = "white" if sum(face) < 400 else _INK
                canvas.text((start + 22 * index + 10, y + 10), number, light, font=_font(_TINY), anchor="mm")
            x += _legend_width(words, boxes)
        y += _LINE


def _draw_row(canvas: ImageDraw.ImageDraw, plan: Plan, row: _Row, y: int) -> None:
    variable = row.variable
    for index, line in enumerate(row.path):
        _text(canvas, _MARGIN, y + index * _LINE, line, _PATH, bold=True)
    for index, line in enumerate(row.form, start=len(row.path)):
        _text(canvas, _MARGIN, y + index * _LINE, line, _SMALL, _GREY)
    cut = [axis for axis in variable.spec if axis]
    parts = math.prod(plan.axes[axis] for axis in cut)
    copies = mesh.size(dict(plan.axes)) // parts
    _shards(canvas, plan, variable, y + (row.height - _GAP) // 2, copies)
    held = f"{rows.size(variable.bytes_per_device)} of {rows.size(variable.bytes)}"
    _text(canvas, _RIGHT, y, held, _TEXT)
    free = "+".join(axis for axis, count in plan.axes.items() if axis not in cut and count > 1)
    words = "whole" if parts == 1 else f"one of {parts} parts"
    many = f"{words}, {copies} copies over {free}" if copies > 1 else words
    _text(canvas, _RIGHT, y + _LINE, _shortened(many, _WIDTH - _RIGHT - _MARGIN), _SMALL, _GREY)


def _shards(canvas: ImageDraw.ImageDraw, plan: Plan, variable: VariablePlan, middle: int, copies: int) -> None:
    """Draws a variable's dims that are cut, and of the others the largest, as rows and columns."""
    shape, spec = variable.shape, variable.spec
    dims = sorted(range(len(shape)), key=lambda d: (spec[d] is None, -shape[d]))
    dims = sorted(dims[: max(2, sum(axis is not None for axis in spec))])
    down, across = dims[:-1][:1], dims[-1:] if len(dims) < 3 else dims[1:]
    rows_, columns = (_places(plan, [spec[d] for d in chosen]) for chosen in (down, across))
    height = _extent([shape[d] for d in down], len(rows_), _TALL)
    width = _extent([shape[d] for d in across], len(columns), _WIDE)
    top = middle - height // 2
    for sheet in reversed(range(1, min(copies, _COPIES + 1))):
        _box(canvas, _MIDDLE + _SHEET[0] * sheet, top - _SHEET[1] * sheet, width, height, _COPY, edge=_BACK)
    for (i, one), (j, other) in itertools.product(enumerate(rows_), enumerate(columns)):
        x, y = (_MIDDLE + j * width // len(columns), top + i * height // len(rows_))
        right, bottom = _MIDDLE + (j + 1) * width // len(columns), top + (i + 1) * height // len(rows_)
        inner = min(right - x, bottom - y) >= _CELL or len(rows_) * len(columns) == 1
        face = colour(plan.axes, one | other)
        _box(canvas, x, y, right - x, bottom - y, face, edge=_EDGE if inner else face)
    canvas.rectangle((_MIDDLE, top, _MIDDLE + width, top + height), outline=_EDGE)


def _places(plan: Plan, axes: Sequence[str | None]) -> list[dict[str, int]]:
    """Returns the coordinates of the parts into which axes cut."""
    named = [axis for axis in axes if axis]
    every = itertools.product(*(range(plan.axes[axis]) for axis in named))
    return [dict(zip(named, place, strict=True)) for place in every]


def _extent(dims: Sequence[int], parts: int, most: int) -> int:
    """Returns pixels for dims: by their logarithm, so that 10 and 4,096 are both seen, and more for many parts."""
    if not dims:
        return 12
    share = max(0.15, min(1.0, math.log2(math.prod(dims) + 1) / 12))
    return min(max(round(most * share), _CELL * parts), most)


def _box(
    canvas: ImageDraw.ImageDraw, x: int, y: int, width: int, height: int, face: Colour, edge: Colour = _EDGE
) -> None:
    canvas.rectangle((x, y, x + width, y + height), fill=face, outline=edge)


def _text(
    canvas: ImageDraw.ImageDraw, x: int, y: int, text: str, size: int, ink: Colour = _INK, *, bold: bool = False
) -> None:
    canvas.text((x, y + _LINE // 2), text, ink, font=_font(size, bold), anchor="lm")


@functools.cache
def _font(size: int, bold: bool = False) -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    """Returns the font that Matplotlib brings along; Pillow's own where it is elsewhere."""
    found = importlib.util.find_spec("matplotlib")
    places = list(found.submodule_search_locations or []) if found else []
    name = "DejaVuSans-Bold.ttf" if bold else "DejaVuSans.ttf"
    for place in places:
        file = Path(place, "mpl-data", "fonts", "ttf", name)
        if file.is_file():
            return ImageFont.truetype(str(file), size)
    return ImageFont.load_default(size)


def _length(text: str, size: int, *, bold: bool = False) -> int:
    length: float = _font(size, bold).getlength(text)
    return math.ceil(length)


def _wrapped(text: str, separator: str, room: int, size: int, *, bold: bool = False) -> list[str]:
    """Returns a text in lines that fit, broken at a separator."""
    lines: list[str] = []
    for part in text.split(separator):
        joined = f"{lines[-1]}{separator}{part}" if lines else part
        if lines and _length(joined, size, bold=bold) <= room:
            lines[-1] = joined
        else:
            lines.append(part)
    return [_shortened(line, room, size, bold=bold) for line in lines]


def _shortened(text: str, room: int, size: int = _SMALL, *, bold: bool = False) -> str:
    """Returns a text that fits, its end replaced by dots where it is too long."""
    if _length(text, size, bold=bold) <= room:
        return text
    while text and _length(f"{text}...", size, bold=bold) > room:
        text = text[:-1]
    return f"{text}..."

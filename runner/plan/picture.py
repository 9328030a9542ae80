"""A picture of a plan: every variable cut into its shards, colored by the mesh coordinates that hold them.

Beside each a bar as long as its bytes, to one scale; the dark part is what one device holds. Equal blocks are one.

Drawn by Pillow: Matplotlib would take a third of the plan's own time.
"""

from __future__ import annotations

import functools
import importlib.util
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from PIL import Image, ImageDraw, ImageFont

from runner.layout import mesh
from runner.plan import rows
from runner.plan.base import Plan, VariablePlan
from runner.plan.fold import Fold, folded
from runner.report import palette, tables
from runner.report.palette import Color

_MOST = 48  # variables drawn, the largest
# pixels, as all below
_WIDTH = 1210
_MARGIN = 16
# where rectangles, bars and numbers begin
MIDDLE = 455
BARS = 690
RIGHT = 905
# a line of text, what is left free between two variables
_LINE = 21
_GAP = 13
# a rectangle of two dims, one of one, and the width of either
_TALL = 32
_FLAT = 14
_WIDE = 195
_BAR = 190  # of the variable that takes most bytes
_INDENT = 18  # of the variables of folded blocks
_CELL = 5  # the smallest part with an outline of its own
_COPIES = 3  # sheets drawn behind a variable's face where more devices hold the same
_SHEET = (5, 4)  # how far a sheet lies to the right and up
_LEGEND = 16  # coordinates of an axis that are shown
_TITLE = 18
_PATH = 15
_TEXT = 15
_SMALL = 13
_TINY = 10
_INK = (25, 25, 25)
_GREY = (95, 95, 95)
_EDGE = (70, 70, 70)
_BACK = (160, 160, 160)
_COPY = (244, 244, 244)
_WHOLE_BAR = (214, 218, 223)
_HELD_BAR = (84, 91, 99)


def draw(plan: Plan, path: Path) -> None:
    """Draws the variables that take most bytes, at most 48.

    Args:
      plan: what to draw.
      path: PNG file to write.
    """
    groups = folded(plan.variables)
    every = [(group, each) for group in groups for each in group.variables]
    largest = sorted(every, key=lambda pair: -pair[0].count * pair[1].bytes)[:_MOST]
    kept = {id(each) for _, each in largest}
    shown: list[_Row] = []
    for group in groups:
        inside = [_row(each, group) for each in group.variables if id(each) in kept]
        shown += [_heading(group), *inside] if group.name and inside else inside
    title = _wrapped(rows.title(plan), ", ", _WIDTH - 2 * _MARGIN, _TITLE, bold=True)
    legend = _legend(plan)
    head = 2 * _MARGIN + _LINE * (len(title) + len(legend)) + 12 * len(legend)
    height = head + _LINE + _GAP + sum(row.height for row in shown) + _MARGIN
    image = Image.new("RGB", (_WIDTH, height), "white")
    canvas = ImageDraw.Draw(image)
    _head(canvas, title, legend)
    first = "variable" if len(kept) == len(every) else f"variable (the {len(kept)} largest of {len(every)})"
    words = (first, "how it is cut, not to scale", "bytes (dark: on a device)", "a device holds")
    for x, text in zip((_MARGIN, MIDDLE, BARS, RIGHT), words, strict=True):
        _text(canvas, x, head, text, _SMALL, _GREY)
    canvas.line((_MARGIN, head + _LINE, _WIDTH - _MARGIN, head + _LINE), fill=_BACK)
    y = head + _LINE + _GAP
    most = max((row.times * row.variable.bytes for row in shown if row.variable), default=1)
    for row in shown:
        _draw_row(canvas, plan, row, y, _BAR / max(most, 1))
        y += row.height
    image.save(path, compress_level=3)


@dataclass(frozen=True)
class _Row:
    """A variable, or the heading of equal blocks, with its words in lines that fit the column.

    Attributes:
      variable: null of a heading.
      path: bold.
      form: below it, in gray.
      times: blocks that have the variable.
      indent: pixels.
    """

    variable: VariablePlan | None
    path: Sequence[str]
    form: Sequence[str] = ()
    times: int = 1
    indent: int = 0

    @property
    def height(self) -> int:
        """Returns the pixels from this row to the next."""
        return _LINE * (len(self.path) + len(self.form)) + _GAP


def _row(variable: VariablePlan, group: Fold) -> _Row:
    indent = _INDENT if group.name else 0
    room = MIDDLE - 2 * _MARGIN - indent
    form = f"{rows.dims(variable.shape)}  {variable.dtype}  {rows.spec_words(variable.spec)}"
    return _Row(variable, _path(variable.path, room), _wrapped(form, "  ", room, _SMALL), group.count, indent)


def _heading(group: Fold) -> _Row:
    whole, held = (
        group.count * sum(getattr(each, name) for each in group.variables) for name in ("bytes", "bytes_per_device")
    )
    words = f"{group.count} equal blocks, a device holds {tables.size(held)} of their {tables.size(whole)}"
    return _Row(None, _path(group.name, MIDDLE - 2 * _MARGIN), _wrapped(words, ", ", MIDDLE - 2 * _MARGIN, _SMALL))


def _path(path: str, room: int) -> list[str]:
    lines = rows.broken(path, lambda line: _length(line, _PATH, bold=True) <= room, "    ")
    return [_shortened(line, room, _PATH, bold=True) for line in lines]


def _legend(plan: Plan) -> list[list[tuple[str, list[tuple[str, Color]]]]]:
    """Returns lines of (words, boxes with their numbers), as many on a line as fit."""
    entries = []
    for axis, count in plan.axes.items():
        boxes = [(str(at), palette.of_part(plan.axes, {axis: at})) for at in range(min(count, _LEGEND))]
        link = f" {rows.NETWORK}" if axis in plan.crossing else ""
        entries.append((f"{axis}={count}{link}", boxes))
    mixed = "; mixed: cut over several axes" if len(plan.axes) > 1 else ""
    entries.append((f"gray: whole{mixed}; sheets behind: copies", []))
    lines: list[list[tuple[str, list[tuple[str, Color]]]]] = [[]]
    for entry in entries:
        used = sum(_legend_width(*each) for each in lines[-1])
        if lines[-1] and used + _legend_width(*entry) > _WIDTH - 2 * _MARGIN:
            lines.append([])
        lines[-1].append(entry)
    return lines


def _legend_width(words: str, boxes: Sequence[tuple[str, Color]]) -> int:
    return _length(words, _TEXT) + 8 + 22 * len(boxes) + 22


def _head(
    canvas: ImageDraw.ImageDraw, title: Sequence[str], legend: Sequence[Sequence[tuple[str, list[tuple[str, Color]]]]]
) -> None:
    y = _MARGIN
    for line in title:
        _text(canvas, _MARGIN, y, line, _TITLE, bold=True)
        y += _LINE
    for entries in legend:
        x = _MARGIN
        y = y + 12
        for words, boxes in entries:
            _text(canvas, x, y, words, _TEXT)
            start = x + _length(words, _TEXT) + 8
            for index, (number, face) in enumerate(boxes):
                _box(canvas, start + 22 * index, y, 20, 20, face)
                canvas.text(
                    (start + 22 * index + 10, y + 10), number, palette.ink_on(face), font=_font(_TINY), anchor="mm"
                )
            x += _legend_width(words, boxes)
        y += _LINE


def _draw_row(canvas: ImageDraw.ImageDraw, plan: Plan, row: _Row, y: int, scale: float) -> None:
    """Draws a row; `scale` is in pixels a byte."""
    variable = row.variable
    x = _MARGIN + row.indent
    for index, line in enumerate(row.path):
        _text(canvas, x, y + index * _LINE, line, _PATH, bold=True)
    for index, line in enumerate(row.form, start=len(row.path)):
        _text(canvas, x, y + index * _LINE, line, _SMALL, _GREY)
    if variable is None:
        return
    cut = [axis for axis in variable.spec if axis]
    parts = math.prod(plan.axes[axis] for axis in cut)
    copies = mesh.size(dict(plan.axes)) // parts
    middle = y + (row.height - _GAP) // 2
    _shards(canvas, plan, variable, middle, copies)
    for share, face in ((variable.bytes, _WHOLE_BAR), (variable.bytes_per_device, _HELD_BAR)):
        length = max(round(scale * row.times * share), 1)
        canvas.rectangle((BARS, middle - 7, BARS + length - 1, middle + 7), fill=face)
    times = f"{row.times} x " if row.times > 1 else ""
    held = f"{times}{tables.size(variable.bytes_per_device)} of {tables.size(variable.bytes)}"
    _text(canvas, RIGHT, y, held, _TEXT)
    free = "+".join(axis for axis, count in plan.axes.items() if axis not in cut and count > 1)
    words = "whole" if parts == 1 else f"one of {parts} parts"
    many = f"{words}, {copies} copies over {free}" if copies > 1 else words
    _text(canvas, RIGHT, y + _LINE, _shortened(many, _WIDTH - RIGHT - _MARGIN), _SMALL, _GREY)


def _shards(canvas: ImageDraw.ImageDraw, plan: Plan, variable: VariablePlan, middle: int, copies: int) -> None:
    """Draws a variable's dims that are cut, and of the others the largest, as rows and columns."""
    shape = variable.shape
    spec = variable.spec
    dims = sorted(range(len(shape)), key=lambda d: (spec[d] is None, -shape[d]))
    dims = sorted(dims[: max(2, sum(axis is not None for axis in spec))])
    down = dims[:-1][:1]
    across = dims[-1:] if len(dims) < 3 else dims[1:]
    rows_, columns = (_places(plan, [spec[d] for d in chosen]) for chosen in (down, across))
    height = _TALL if down else _FLAT
    width = _WIDE
    top = middle - height // 2
    for sheet in reversed(range(1, min(copies, _COPIES + 1))):
        _box(canvas, MIDDLE + _SHEET[0] * sheet, top - _SHEET[1] * sheet, width, height, _COPY, edge=_BACK)
    for (i, one), (j, other) in itertools.product(enumerate(rows_), enumerate(columns)):
        x = MIDDLE + j * width // len(columns)
        y = top + i * height // len(rows_)
        right = MIDDLE + (j + 1) * width // len(columns)
        bottom = top + (i + 1) * height // len(rows_)
        inner = min(right - x, bottom - y) >= _CELL or len(rows_) * len(columns) == 1
        face = palette.of_part(plan.axes, one | other)
        _box(canvas, x, y, right - x, bottom - y, face, edge=_EDGE if inner else face)
    canvas.rectangle((MIDDLE, top, MIDDLE + width, top + height), outline=_EDGE)


def _places(plan: Plan, axes: Sequence[str | None]) -> list[dict[str, int]]:
    """Returns the coordinates of the parts into which axes cut."""
    named = [axis for axis in axes if axis]
    every = itertools.product(*(range(plan.axes[axis]) for axis in named))
    return [dict(zip(named, place, strict=True)) for place in every]


def _box(
    canvas: ImageDraw.ImageDraw, x: int, y: int, width: int, height: int, face: Color, edge: Color = _EDGE
) -> None:
    canvas.rectangle((x, y, x + width, y + height), fill=face, outline=edge)


def _text(
    canvas: ImageDraw.ImageDraw, x: int, y: int, text: str, size: int, ink: Color = _INK, *, bold: bool = False
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

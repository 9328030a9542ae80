"""The picture of a plan.

The memory of a device by kind, the timeline of a step, and every variable's shards, colored by the mesh coordinates
that they are on.

A bar beside each variable shows its bytes, all to one scale; the dark part is on one device. Equal blocks are drawn
once.

Pillow draws it: Matplotlib would take a third of the plan's own time.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from PIL import Image, ImageDraw

from runner.layout import mesh
from runner.plan import bars, lettering, rows
from runner.plan.base import Plan, VariablePlan
from runner.plan.fold import Fold, folded
from runner.report import palette, tables
from runner.report.palette import Color

# Variables drawn, the largest: a picture of more is too tall to read.
_MOST = 48

# All lengths are in pixels.
_MARGIN = 16
# Width between the margins.
WIDTH = 1178
# Left edges of the columns: shards, bars, numbers.
MIDDLE = 455
BARS = 690
RIGHT = 905
# The gap between two variables.
_GAP = 13
# A rectangle is as tall as this for two dims or more, and for one; all are as wide.
_TALL = 32
_FLAT = 14
_WIDE = 195
# The bar of the variable with the most bytes.
_BAR = 190
_BAR_HEIGHT = 14
# Indentation of the variables of folded blocks.
_INDENT = 18
# Smaller shards are drawn without an outline, which would cover them.
_CELL = 5
# Replicas are sheets behind the front one: at most so many, each this far to the right and up.
_SHEETS = 3
_SHEET = (5, 4)
# Coordinates of an axis in the legend; more would not fit on its line.
_LEGEND = 16
# A legend's boxes: size, distance from box to box, gap around a group of boxes, gap above a line.
_LEGEND_BOX = 20
_LEGEND_STEP = 22
_LEGEND_GAP = 8
_LEGEND_LINE_GAP = 12

# Colors.
_EDGE = (70, 70, 70)
_BACK = (160, 160, 160)
_REPLICA = (244, 244, 244)
_WHOLE_BAR = (214, 218, 223)
_DEVICE_BAR = (84, 91, 99)

# Words of a legend's entry, and its boxes as (coordinate, color).
_LegendEntry = tuple[str, list[tuple[str, Color]]]


def draw(plan: Plan, path: Path) -> None:
    """Draws the variables with the most bytes, at most 48.

    Args:
      plan: the plan to draw.
      path: PNG file to write.
    """
    shown, left_out = _rows(plan)
    title = _wrapped(rows.title(plan), ", ", WIDTH, lettering.TITLE, bold=True)
    legend = _legend(plan)
    head = 2 * _MARGIN + lettering.LINE * (len(title) + len(legend)) + _LEGEND_LINE_GAP * len(legend)
    summary = head
    head += bars.height(plan, WIDTH)
    height = head + lettering.LINE + _GAP + _MARGIN
    count = 0
    most = 1
    for row in shown:
        height += row.height
        if row.variable is not None:
            count += 1
            most = max(most, row.blocks * row.variable.bytes)
    image = Image.new("RGB", (WIDTH + 2 * _MARGIN, height), "white")
    canvas = ImageDraw.Draw(image)
    _draw_head(canvas, title, legend)
    bars.draw(canvas, plan, (_MARGIN, summary), WIDTH)

    first_heading = "variable"
    if left_out:
        first_heading += f" (the {count} largest of {count + left_out})"
    lettering.text(canvas, _MARGIN, head, first_heading, lettering.SMALL, lettering.GRAY)
    lettering.text(canvas, MIDDLE, head, "shards, not to scale", lettering.SMALL, lettering.GRAY)
    lettering.text(canvas, BARS, head, "bytes (dark: on one device)", lettering.SMALL, lettering.GRAY)
    lettering.text(canvas, RIGHT, head, "per device", lettering.SMALL, lettering.GRAY)
    canvas.line((_MARGIN, head + lettering.LINE, WIDTH + _MARGIN, head + lettering.LINE), fill=_BACK)

    # All bars have one scale: the longest is that of the variable with the most bytes.
    pixels_per_byte = _BAR / most
    y = head + lettering.LINE + _GAP
    for row in shown:
        _draw_row(canvas, plan, row, y, pixels_per_byte)
        y += row.height
    # Compression level 3 writes a third faster than the default, for files that are a few percent larger.
    image.save(path, compress_level=3)


@dataclass(frozen=True)
class _Row:
    """A variable or the heading of equal blocks, in lines that fit the column.

    Attributes:
      variable: None for a heading.
      path: lines in bold.
      details: lines below it, in gray.
      blocks: number of equal blocks that have the variable.
      indent: pixels.
    """

    variable: VariablePlan | None
    path: Sequence[str]
    details: Sequence[str] = ()
    blocks: int = 1
    indent: int = 0

    @property
    def height(self) -> int:
        """Returns the pixels from this row to the next."""
        return lettering.LINE * (len(self.path) + len(self.details)) + _GAP


def _rows(plan: Plan) -> tuple[list[_Row], int]:
    """Returns the rows of the largest variables, and how many are left out.

    The rows are in the model's order.
    """
    groups = folded(plan.variables)
    bytes_by_id: dict[int, int] = {}
    for group in groups:
        for variable in group.variables:
            bytes_by_id[id(variable)] = group.count * variable.bytes
    # The sort is stable: of variables of one size, the model's first ones are shown.
    largest = sorted(bytes_by_id, key=lambda identity: -bytes_by_id[identity])[:_MOST]
    shown: list[_Row] = []
    for group in groups:
        has_heading = not group.name
        for variable in group.variables:
            if id(variable) not in largest:
                continue
            if not has_heading:
                shown.append(_heading(group))
                has_heading = True
            shown.append(_row(variable, group))
    return shown, len(bytes_by_id) - len(largest)


def _row(variable: VariablePlan, group: Fold) -> _Row:
    indent = _INDENT if group.name else 0
    room = MIDDLE - 2 * _MARGIN - indent
    details = f"{rows.dims(variable.shape)}  {variable.dtype}  {rows.spec_words(variable.spec)}"
    return _Row(
        variable, _path(variable.path, room), _wrapped(details, "  ", room, lettering.SMALL), group.count, indent
    )


def _heading(group: Fold) -> _Row:
    per_device = tables.size(group.bytes_per_device)
    details = f"{group.count} equal blocks, {per_device} per device of {tables.size(group.bytes)}"
    room = MIDDLE - 2 * _MARGIN
    return _Row(None, _path(group.name, room), _wrapped(details, ", ", room, lettering.SMALL))


def _path(path: str, room: int) -> list[str]:
    lines = rows.broken(path, lambda line: lettering.length(line, lettering.PATH, bold=True) <= room, "    ")
    return _all_shortened(lines, room, lettering.PATH, bold=True)


def _legend(plan: Plan) -> list[list[_LegendEntry]]:
    """Returns the legend's entries in lines that fit."""
    entries: list[_LegendEntry] = []
    for axis, count in plan.axes.items():
        boxes = []
        for coordinate in range(min(count, _LEGEND)):
            boxes.append((str(coordinate), palette.of_part(plan.axes, {axis: coordinate})))
        name = f"{axis}={count}"
        if axis in plan.crossing:
            name += f" {rows.NETWORK}"
        entries.append((name, boxes))
    mixed = ""
    if len(plan.axes) > 1:
        mixed = "; mixed: sharded over several axes"
    entries.append((f"gray: replicated{mixed}; sheets behind: replicas", []))

    lines: list[list[_LegendEntry]] = [[]]
    for entry in entries:
        used = sum(_legend_width(*other) for other in lines[-1])
        if lines[-1] and used + _legend_width(*entry) > WIDTH:
            lines.append([])
        lines[-1].append(entry)
    return lines


def _legend_width(words: str, boxes: Sequence[tuple[str, Color]]) -> int:
    return lettering.length(words, lettering.TEXT) + _LEGEND_GAP + _LEGEND_STEP * len(boxes) + _LEGEND_STEP


def _draw_head(canvas: ImageDraw.ImageDraw, title: Sequence[str], legend: Sequence[Sequence[_LegendEntry]]) -> None:
    y = _MARGIN
    for line in title:
        lettering.text(canvas, _MARGIN, y, line, lettering.TITLE, bold=True)
        y += lettering.LINE
    for entries in legend:
        x = _MARGIN
        y += _LEGEND_LINE_GAP
        for words, boxes in entries:
            lettering.text(canvas, x, y, words, lettering.TEXT)
            left = x + lettering.length(words, lettering.TEXT) + _LEGEND_GAP
            for coordinate, color in boxes:
                _box(canvas, left, y, _LEGEND_BOX, _LEGEND_BOX, color)
                center = (left + _LEGEND_BOX // 2, y + _LEGEND_BOX // 2)
                canvas.text(
                    center, coordinate, palette.ink_on(color), font=lettering.font(lettering.TINY), anchor="mm"
                )
                left += _LEGEND_STEP
            x += _legend_width(words, boxes)
        y += lettering.LINE


def _draw_row(canvas: ImageDraw.ImageDraw, plan: Plan, row: _Row, y: int, pixels_per_byte: float) -> None:
    x = _MARGIN + row.indent
    line_y = y
    for line in row.path:
        lettering.text(canvas, x, line_y, line, lettering.PATH, bold=True)
        line_y += lettering.LINE
    for line in row.details:
        lettering.text(canvas, x, line_y, line, lettering.SMALL, lettering.GRAY)
        line_y += lettering.LINE
    variable = row.variable
    if variable is None:
        return

    sharding_axes = list(filter(None, variable.spec))
    shards = math.prod(plan.axes[axis] for axis in sharding_axes)
    replicas = mesh.size(dict(plan.axes)) // shards
    middle = y + (row.height - _GAP) // 2
    _draw_shards(canvas, plan, variable, middle, replicas)
    for count, color in ((variable.bytes, _WHOLE_BAR), (variable.bytes_per_device, _DEVICE_BAR)):
        length = max(round(pixels_per_byte * row.blocks * count), 1)
        top = middle - _BAR_HEIGHT // 2
        canvas.rectangle((BARS, top, BARS + length - 1, top + _BAR_HEIGHT), fill=color)

    sizes = f"{tables.size(variable.bytes_per_device)} of {tables.size(variable.bytes)}"
    if row.blocks > 1:
        sizes = f"{row.blocks} x {sizes}"
    lettering.text(canvas, RIGHT, y, sizes, lettering.TEXT)
    words = "whole"
    if shards > 1:
        words = f"one of {shards} shards"
    if replicas > 1:
        other_axes = []
        for axis, count in plan.axes.items():
            if axis not in sharding_axes and count > 1:
                other_axes.append(axis)
        words += f", {replicas} replicas over {'+'.join(other_axes)}"
    lettering.text(
        canvas, RIGHT, y + lettering.LINE, _shortened(words, WIDTH + _MARGIN - RIGHT), lettering.SMALL, lettering.GRAY
    )


def _draw_shards(canvas: ImageDraw.ImageDraw, plan: Plan, variable: VariablePlan, middle: int, replicas: int) -> None:
    """Draws a variable as a grid of its shards.

    A rectangle has two sides: it shows the dims that are sharded and, if these are fewer than two, the largest others.
    """
    shape = variable.shape
    spec = variable.spec
    sharded_first = sorted(range(len(shape)), key=lambda dim: (spec[dim] is None, -shape[dim]))
    sharded_count = len(spec) - spec.count(None)
    axes = [spec[dim] for dim in sorted(sharded_first[: max(2, sharded_count)])]
    # The first dim goes down and the others across; a single one goes across.
    down_count = 0
    height = _FLAT
    if len(axes) > 1:
        down_count = 1
        height = _TALL
    row_places = _coordinates(plan, axes[:down_count])
    column_places = _coordinates(plan, axes[down_count:])
    top = middle - height // 2

    for sheet in reversed(range(1, min(replicas, _SHEETS + 1))):
        left = MIDDLE + _SHEET[0] * sheet
        _box(canvas, left, top - _SHEET[1] * sheet, _WIDE, height, _REPLICA, edge=_BACK)
    row_count = len(row_places)
    column_count = len(column_places)
    for row, row_place in enumerate(row_places):
        y = top + row * height // row_count
        bottom = top + (row + 1) * height // row_count
        for column, column_place in enumerate(column_places):
            x = MIDDLE + column * _WIDE // column_count
            right = MIDDLE + (column + 1) * _WIDE // column_count
            color = palette.of_part(plan.axes, row_place | column_place)
            # An outline around a shard of a few pixels would hide its color.
            edge = color
            if min(right - x, bottom - y) >= _CELL or row_count * column_count == 1:
                edge = _EDGE
            _box(canvas, x, y, right - x, bottom - y, color, edge=edge)
    canvas.rectangle((MIDDLE, top, MIDDLE + _WIDE, top + height), outline=_EDGE)


def _coordinates(plan: Plan, axes: Sequence[str | None]) -> list[dict[str, int]]:
    """Returns the mesh coordinates of the shards that axes make."""
    # A variable without sharded dims has one shard, with no coordinates.
    coordinates: list[dict[str, int]] = [{}]
    for axis in axes:
        if axis is None:
            continue
        longer = []
        for coordinate in coordinates:
            for place in range(plan.axes[axis]):
                longer.append({**coordinate, axis: place})
        coordinates = longer
    return coordinates


def _box(
    canvas: ImageDraw.ImageDraw, x: int, y: int, width: int, height: int, color: Color, edge: Color = _EDGE
) -> None:
    canvas.rectangle((x, y, x + width, y + height), fill=color, outline=edge)


def _wrapped(text: str, separator: str, room: int, size: int, *, bold: bool = False) -> list[str]:
    """Returns a text in lines that fit the room, broken at a separator."""
    lines: list[str] = []
    for part in text.split(separator):
        if lines and lettering.length(f"{lines[-1]}{separator}{part}", size, bold=bold) <= room:
            lines[-1] += f"{separator}{part}"
        else:
            lines.append(part)
    return _all_shortened(lines, room, size, bold=bold)


def _all_shortened(lines: Iterable[str], room: int, size: int, *, bold: bool) -> list[str]:
    """Returns lines of which each fits the room, see `_shortened`."""
    return [_shortened(line, room, size, bold=bold) for line in lines]


def _shortened(text: str, room: int, size: int = lettering.SMALL, *, bold: bool = False) -> str:
    """Returns a text that fits the room; the end of a longer one is replaced by dots."""
    if lettering.length(text, size, bold=bold) <= room:
        return text
    while text and lettering.length(f"{text}...", size, bold=bold) > room:
        text = text[:-1]
    return f"{text}..."

"""Two bars of the plan's picture: the memory of a device by kind, and the timeline of a step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from PIL import ImageDraw

from runner.layout import mesh
from runner.plan import host_memory, lettering, rows
from runner.plan.base import Plan
from runner.plan.forecast import LINK_EFFICIENCY
from runner.report import palette, tables
from runner.report.palette import Color

# Lengths in pixels.
_BAR = 22
_GAP = 8
_BOX = 12
# Space above and below the two bars.
_SPACE = 14
# Narrower segments have no color left beside an outline.
_NARROW = 3
# A limit of so many times the memory is not drawn: the bar would be too short to read.
_BEYOND = 20
_LIMIT: Color = (200, 30, 30)
_EDGE: Color = (70, 70, 70)
_COMPUTE: Color = (84, 91, 99)


def _color(hexadecimal: str) -> Color:
    return int(hexadecimal[1:3], 16), int(hexadecimal[3:5], 16), int(hexadecimal[5:7], 16)


_COLORS = tuple(_color(name) for name in palette.SERIES)


@dataclass(frozen=True)
class Segment:
    """A part of a bar.

    Attributes:
      name: for the legend.
      amount: bytes or seconds.
      label: the amount, for the legend.
      color: of the part.
    """

    name: str
    amount: float
    label: str
    color: Color


def memory_segments(plan: Plan) -> list[Segment]:
    """Returns one device's memory by kind: at the peak of a step, or of all arrays that the plan counts."""
    amounts: dict[str, int] = {}
    if plan.forecast is not None:
        for part in plan.forecast.memory:
            amounts[part.kind] = part.bytes
    else:
        names = {"slots": "optimizer state", "parameters": "weights", "copies": "bfloat16 copies"}
        for name, total in plan.totals.items():
            amounts[names.get(name, name)] = total.bytes_per_device
    segments = []
    for index, (name, count) in enumerate(amounts.items()):
        segments.append(Segment(name, count, tables.size(count), _COLORS[index % len(_COLORS)]))
    return segments


def capacity_bytes(plan: Plan) -> int:
    """Returns the bytes of one device's memory; 0: not known. Virtual devices of a CPU share the machine's."""
    if plan.forecast is not None:
        return plan.forecast.capacity_bytes
    if plan.rates.device != "cpu":
        return 0
    return host_memory.of_virtual_device(mesh.size(dict(plan.axes)), plan.machines)


def link_segments(plan: Plan) -> list[Segment]:
    """Returns the time of a step's collectives by axis.

    A forecast divides by LINK_EFFICIENCY, the share of the bandwidth that links reach.
    """
    share = 1.0
    if plan.forecast is not None:
        share = LINK_EFFICIENCY
    seconds: dict[str, float] = {}
    for group in plan.traffic:
        seconds[group.axis] = seconds.get(group.axis, 0.0) + group.seconds / share
    segments = []
    for index, (axis, amount) in enumerate(seconds.items()):
        color = _COLORS[index % len(_COLORS)]
        label = rows.duration(amount)
        if share < 1.0:
            # The tables show times at the full link rate.
            label += f" at {share:.0%} of the links' rate"
        segments.append(Segment(f"collectives over {axis}", amount, label, color))
    return segments


def compute_range_s(plan: Plan) -> tuple[float, float]:
    """Returns the seconds that a device computes in a step, with its memory traffic: fastest and slowest."""
    if plan.forecast is None:
        return plan.compute_seconds, plan.compute_seconds
    # As in the forecast: products and what goes through the device's memory follow each other.
    fastest, slowest = plan.forecast.compute_seconds
    moved = plan.forecast.memory_seconds
    return fastest + moved, slowest + moved


def height(plan: Plan, width: int) -> int:
    """Returns the height of both bars with their legends.

    Args:
      plan: to draw.
      width: of the bars.
    """
    legend_lines = len(_lines(memory_segments(plan), width)) + len(_lines(_timeline(plan), width))
    # Lines of text: two headings, and one above each of the two timelines.
    text_lines = 4
    # One bar of memory and three of times.
    return (legend_lines + text_lines) * lettering.LINE + 4 * (_BAR + _GAP) + 3 * _SPACE


def draw(canvas: ImageDraw.ImageDraw, plan: Plan, at: tuple[int, int], width: int) -> None:
    """Draws both bars.

    Args:
      canvas: of the picture.
      plan: to draw.
      at: left and top.
      width: of the bars.
    """
    left, y = at
    y += _SPACE
    y = _draw_memory(canvas, plan, (left, y), width)
    _draw_timeline(canvas, plan, (left, y + _SPACE), width)


def _draw_memory(canvas: ImageDraw.ImageDraw, plan: Plan, at: tuple[int, int], width: int) -> int:
    """Draws the memory of a device and returns where the next bar begins."""
    left, y = at
    segments = memory_segments(plan)
    capacity = capacity_bytes(plan)
    total = sum(segment.amount for segment in segments)
    heading = f"memory of one device: {tables.size(round(total))}"
    if capacity > _BEYOND * total:
        heading += f" of {tables.size(capacity)}"
        capacity = 0
    elif capacity:
        heading += f" of {tables.size(capacity)} (red line)"
    lettering.text(canvas, left, y, heading, lettering.TEXT, bold=True)
    y += lettering.LINE
    # The longer of the two takes the width, so that an excess is visible.
    scale = width / max(total, capacity, 1)
    _draw_bar(canvas, segments, (left, y), scale)
    if capacity:
        x = left + min(round(capacity * scale), width - 1)
        canvas.rectangle((left, y, x, y + _BAR), outline=_EDGE)
        canvas.line((x, y - 3, x, y + _BAR + 3), fill=_LIMIT, width=3)
    y += _BAR + _GAP
    return _draw_legend(canvas, segments, (left, y), width)


def _draw_timeline(canvas: ImageDraw.ImageDraw, plan: Plan, at: tuple[int, int], width: int) -> None:
    """Draws a step without overlap, and below it one with full overlap, with a legend of both."""
    left, y = at
    fastest, slowest = compute_range_s(plan)
    segments = _timeline(plan)
    link_bars = segments[1:]
    communication = sum(segment.amount for segment in link_bars)
    whole = slowest + communication
    overlapped = rows.duration(max(fastest, communication))
    if slowest > fastest:
        overlapped = f"{overlapped} to {rows.duration(max(slowest, communication))}"
    heading = f"one step: {overlapped} if all communication overlaps with compute"
    lettering.text(canvas, left, y, f"{heading}, {rows.duration(whole)} if none does", lettering.TEXT, bold=True)
    y += lettering.LINE
    # A plan without compute and collectives has no time to scale by.
    scale = width / max(whole, 1e-12)
    lettering.text(canvas, left, y, "no overlap, slowest compute", lettering.SMALL, lettering.GRAY)
    y += lettering.LINE
    _draw_bar(canvas, segments, (left, y), scale)
    y += _BAR + _GAP
    lettering.text(canvas, left, y, "full overlap, fastest compute", lettering.SMALL, lettering.GRAY)
    y += lettering.LINE
    fastest_compute = replace(segments[0], amount=fastest)
    _draw_bar(canvas, [fastest_compute], (left, y), scale)
    y += _BAR
    _draw_bar(canvas, link_bars, (left, y), scale)
    y += _BAR + 2 * _GAP
    _draw_legend(canvas, segments, (left, y), width)


def _timeline(plan: Plan) -> list[Segment]:
    """Returns the timeline's segments: the slowest compute, labeled with its range, and then the collectives."""
    fastest, slowest = compute_range_s(plan)
    label = rows.duration(fastest)
    if slowest > fastest:
        label = f"{label} to {rows.duration(slowest)}"
    return [Segment("compute", slowest, label, _COMPUTE), *link_segments(plan)]


def _draw_bar(canvas: ImageDraw.ImageDraw, segments: Sequence[Segment], at: tuple[int, int], scale: float) -> None:
    left, y = at
    start = 0.0
    for segment in segments:
        first = left + round(start * scale)
        start += segment.amount
        last = left + round(start * scale) - 1
        if last < first:
            continue
        edge = _EDGE if last - first >= _NARROW else segment.color
        canvas.rectangle((first, y, last, y + _BAR), fill=segment.color, outline=edge)


def _lines(segments: Sequence[Segment], width: int) -> list[list[Segment]]:
    """Returns the legend's entries in lines that fit."""
    lines: list[list[Segment]] = [[]]
    for segment in segments:
        used = sum(_entry_width(other) for other in lines[-1])
        if lines[-1] and used + _entry_width(segment) > width:
            lines.append([])
        lines[-1].append(segment)
    return lines


def _entry_width(segment: Segment) -> int:
    return 3 * _BOX + lettering.length(f"{segment.name} {segment.label}", lettering.SMALL)


def _draw_legend(canvas: ImageDraw.ImageDraw, segments: Sequence[Segment], at: tuple[int, int], width: int) -> int:
    """Draws a legend and returns where it ends."""
    left, y = at
    for entries in _lines(segments, width):
        x = left
        for segment in entries:
            top = y + (lettering.LINE - _BOX) // 2
            canvas.rectangle((x, top, x + _BOX, top + _BOX), fill=segment.color, outline=_EDGE)
            lettering.text(canvas, x + _BOX + 6, y, f"{segment.name} {segment.label}", lettering.SMALL)
            x += _entry_width(segment)
        y += lettering.LINE
    return y

"""docs/images/layouts: which device holds what, drawn from the presets by the runner's own rules.

`python -m tests.docs.layout_pictures` writes them again; a test holds the files to that.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from html import escape
from pathlib import Path

from runner import layout
from runner.config import search_path
from runner.config.build import build
from runner.config.schema import LayoutConfig

FOLDER = Path(__file__).resolve().parents[2] / "docs" / "images" / "layouts"
VARIABLES: dict[str, tuple[int, ...]] = {
    "d1/kernel": (784, 512),
    "d1/bias": (512,),
    "d2/kernel": (512, 10),
    "d2/bias": (10,),
}
BATCH = (128, 784)
IMAGES = (64, 28)  # examples, rows of an image
# Preset -> the axes of the mesh that it is shown on.
PICTURES: dict[str, dict[str, int]] = {
    "replicated": {"batch": 8},
    "fsdp": {"batch": 8},
    "megatron": {"batch": 4, "model": 2},
    "fsdp_megatron": {"batch": 2, "model": 4},
    "spatial": {"batch": 2, "height": 2},
}
_WHOLE, _INK, _LINE = "#dfe3e8", "#1b1f24", "#57606a"
_COLOURS = ("#b6d7ff", "#ffd8a8", "#b2e5b9", "#f5b5c8", "#d5c3f5", "#fff0a8", "#a8e6e0", "#e5c9a8")
_GAP, _TOP, _TALL, _FOOT = 26, 60, 150, 22


@dataclass(frozen=True)
class Block:
    """A part of an array: its place in the grid of parts, and the devices that hold it."""

    row: int
    column: int
    devices: tuple[int, ...]


def blocks(spec: layout.Spec, axes: Mapping[str, int]) -> Iterator[Block]:
    """Cuts an array of one or two dims as its spec says; devices are numbered row by row over the axes."""
    counts = [axes[axis] if axis else 1 for axis in spec] + [1]
    for row, column in itertools.product(range(counts[0]), range(counts[1])):
        part = {axis: at for at, axis in zip((row, column), spec, strict=False) if axis}
        held = [
            number
            for number, place in enumerate(itertools.product(*(range(size) for size in axes.values())))
            if all(dict(zip(axes, place, strict=True))[axis] == index for axis, index in part.items())
        ]
        yield Block(row, column, tuple(held))


def numbers(devices: tuple[int, ...]) -> str:
    """Returns `0-7`, `0 2 4 6` or `3`."""
    if len(devices) > 2 and devices[-1] - devices[0] == len(devices) - 1:
        return f"{devices[0]}-{devices[-1]}"
    return " ".join(map(str, devices))


def drawn(name: str, shape: tuple[int, ...], spec: layout.Spec, axes: Mapping[str, int], left: int) -> tuple[str, int]:
    """Returns an array as SVG, and where the next one may begin."""
    parts = list(blocks(spec, axes))
    rows, columns = 1 + max(part.row for part in parts), 1 + max(part.column for part in parts)
    tall = _TALL if len(shape) > 1 or rows > 1 else _TALL // 3
    widest = max(len(numbers(part.devices)) for part in parts)
    wide = max(columns * max(34, 8 * widest + 12), 58, 7 * len(name) + 8)
    across, down = wide / columns, tall / rows
    middle = left + wide / 2
    text = [f'<text x="{middle:g}" y="{_TOP - 24}" class="name">{escape(name)}</text>']
    text.append(f'<text x="{middle:g}" y="{_TOP - 9}" class="small">{" x ".join(map(str, shape))}</text>')
    for part in parts:
        fill = _WHOLE if len(parts) == 1 else _COLOURS[part.devices[0] % len(_COLOURS)]
        x, y = left + part.column * across, _TOP + part.row * down
        text.append(f'<rect x="{x:g}" y="{y:g}" width="{across:g}" height="{down:g}" fill="{fill}"/>')
        text.append(
            f'<text x="{x + across / 2:g}" y="{y + down / 2 + 4:g}" class="devices">{numbers(part.devices)}</text>'
        )
    share = 1 / len(parts)
    said = "all of it on each" if share == 1 else f"1/{len(parts)} on each"
    text.append(f'<text x="{middle:g}" y="{_TOP + tall + _FOOT - 6}" class="small">{said}</text>')
    return "\n".join(text), left + math.ceil(wide) + _GAP


def picture(preset: str, axes: Mapping[str, int]) -> str:
    """Returns the SVG of a preset on a mesh: the batch first, then every variable of an MLP."""
    config = build(LayoutConfig, search_path.content_of(f"layout/{preset}"), "layout")
    batch, spec = ("batch", BATCH), ("batch", None)
    if config.inputs:
        batch, spec = ("images x rows", IMAGES), tuple(config.inputs["image"][:2])
    arrays = [(*batch, spec)]
    placed = layout.resolve(config, VARIABLES, axes)
    arrays += [(path, placement.shape, placement.spec) for path, placement in placed.items()]
    left, body = 16, []
    for name, shape, one in arrays:
        text, left = drawn(name, shape, one, axes, left)
        body.append(text)
    mesh = " ".join(f"{axis}={size}" for axis, size in axes.items())
    wide, tall = max(left - _GAP + 16, 480), _TOP + _TALL + _FOOT + 8
    font = "font-family: ui-sans-serif, Helvetica, Arial, sans-serif"
    style = (
        f"text {{ {font}; fill: {_INK}; text-anchor: middle }} .title {{ font-size: 14px; font-weight: 600; "
        f"text-anchor: start }} .name {{ font-size: 12px }} .small {{ font-size: 11px; fill: {_LINE} }} "
        f".devices {{ font-size: 12px }} rect {{ stroke: {_LINE}; stroke-width: 1 }}"
    )
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {wide} {tall}" width="{wide}" height="{tall}" '
            'role="img">',
            f"<title>layout={preset} on a mesh {mesh}: the batch and each variable, cut into shards</title>",
            f"<style>{style}</style>",
            f'<path d="M0 0H{wide}V{tall}H0Z" fill="#ffffff"/>',
            f'<text x="16" y="20" class="title">layout={preset} on a mesh {mesh}</text>',
            *body,
            "</svg>\n",
        ]
    )


def main() -> None:
    """Writes all pictures."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    for preset, axes in PICTURES.items():
        (FOLDER / f"{preset}.svg").write_text(picture(preset, axes))


if __name__ == "__main__":
    main()

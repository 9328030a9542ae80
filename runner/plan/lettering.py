"""Text in the plan's picture: font, sizes and colors. Lengths are in pixels."""

from __future__ import annotations

import functools
import importlib.util
import math
from pathlib import Path

from PIL import ImageDraw, ImageFont

from runner.report.palette import Color

# The height of a line of text.
LINE = 21

# Font sizes.
TITLE = 18
PATH = 15
TEXT = 15
SMALL = 13
TINY = 10

# Colors.
INK: Color = (25, 25, 25)
GRAY: Color = (95, 95, 95)


def text(
    canvas: ImageDraw.ImageDraw, x: int, y: int, words: str, size: int, ink: Color = INK, *, bold: bool = False
) -> None:
    """Writes one line; `y` is the top of the line."""
    canvas.text((x, y + LINE // 2), words, ink, font=font(size, bold), anchor="lm")


@functools.cache
def font(size: int, bold: bool = False) -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    """Returns the font that Matplotlib ships, or else Pillow's default font."""
    matplotlib = importlib.util.find_spec("matplotlib")
    if matplotlib is None:
        return ImageFont.load_default(size)
    name = "DejaVuSans-Bold.ttf" if bold else "DejaVuSans.ttf"
    for folder in matplotlib.submodule_search_locations or []:
        file = Path(folder, "mpl-data", "fonts", "ttf", name)
        if file.is_file():
            return ImageFont.truetype(str(file), size)
    return ImageFont.load_default(size)


def length(words: str, size: int, *, bold: bool = False) -> int:
    """Returns the width of one line."""
    width: float = font(size, bold).getlength(words)
    return math.ceil(width)

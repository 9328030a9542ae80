"""Colors that mean the same in every picture. Imports nothing: the plan's picture is drawn without Matplotlib."""

from __future__ import annotations

import math
from collections.abc import Mapping

Color = tuple[int, int, int]

# Okabe and Ito's colors, which a color-blind eye tells apart, but for yellow, which vanishes on white.
SERIES = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#4D4D4D")
TRAIN = SERIES[0]
EVALUATED = SERIES[1]
TRAIN_STEPS = "#A6CCE3"
OTHER = "#BDBDBD"  # what is there besides, as runs that are not among the best
WHOLE: Color = (204, 207, 212)  # what no axis of the mesh cuts
# Light to dark, one pair an axis of the mesh, in its order. A part cut over two axes has the product of their colors,
# as inks printed over each other: blue and rose give violets, and each coordinate is still seen.
_AXES = (
    ((222, 238, 250), (33, 118, 189)),
    ((252, 226, 238), (205, 76, 140)),
    ((255, 246, 208), (233, 176, 28)),
    ((226, 243, 224), (70, 150, 74)),
)
_FULL = 255  # of red, green or blue
_DARK = 0.18  # luminance below which white contrasts more than black


def of_part(axes: Mapping[str, int], place: Mapping[str, int]) -> Color:
    """Returns the color of a part that lies at some coordinates: each axis's own, over each other where several are.

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
        return WHOLE
    red, green, blue = (round(_FULL * math.prod(part / _FULL for part in parts)) for parts in zip(*found, strict=True))
    return red, green, blue


def as_hex(color: Color) -> str:
    """Returns a color as Matplotlib takes it.

    >>> as_hex((18, 84, 158))
    '#12549e'
    """
    return "#{:02x}{:02x}{:02x}".format(*color)


def ink_on(color: Color) -> str:
    """Returns the color in which text is read on another: `white` on what is dark, `black` on what is light.

    >>> ink_on((18, 84, 158)), ink_on((252, 212, 158))
    ('white', 'black')
    """
    linear = [part / _FULL / 12.92 if part <= 10 else ((part / _FULL + 0.055) / 1.055) ** 2.4 for part in color]
    luminance = sum(weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), linear, strict=True))
    return "white" if luminance < _DARK else "black"  # WCAG 2.2, relative luminance

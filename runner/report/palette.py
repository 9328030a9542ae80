"""Colors with the same meaning in every plot.

Imports nothing: the plan's picture is drawn without Matplotlib.
"""

from __future__ import annotations

from collections.abc import Mapping

Color = tuple[int, int, int]

# Okabe and Ito's palette, whose colors color-blind people can tell apart, without yellow, which is invisible on white.
SERIES = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#4D4D4D")
TRAIN = SERIES[0]
EVALUATED = SERIES[1]
TRAIN_STEPS = "#A6CCE3"
# Curves that are only context, such as runs that are not among the best.
OTHER = "#BDBDBD"
# Replicated variables.
WHOLE: Color = (204, 207, 212)
# One pair per axis of the mesh, in its order: the color of the first shard and that of the last. A shard along two
# axes has the product of their colors, like inks printed on top of each other: blue and pink give violets, in which
# both coordinates are visible.
_AXES = (
    ((222, 238, 250), (33, 118, 189)),
    ((252, 226, 238), (205, 76, 140)),
    ((255, 246, 208), (233, 176, 28)),
    ((226, 243, 224), (70, 150, 74)),
)
_FULL = 255
# Luminance below which white text has more contrast than black.
_DARK = 0.18
# WCAG 2.2, relative luminance.
_LUMINANCE_WEIGHTS = (0.2126, 0.7152, 0.0722)


def of_part(axes: Mapping[str, int], place: Mapping[str, int]) -> Color:
    """Returns the color of a shard, by its coordinates.

    The colors of several axes are multiplied.

    Args:
      axes: the mesh's axes, name to size.
      place: axis to coordinate, for the axes along which the variable is sharded.
    """
    if not any(axis in place for axis in axes):
        return WHOLE
    red = green = blue = 1.0
    for index, (axis, size) in enumerate(axes.items()):
        if axis not in place:
            continue
        first, last = _AXES[index % len(_AXES)]
        fraction = place[axis] / max(size - 1, 1)
        red *= _between(first[0], last[0], fraction) / _FULL
        green *= _between(first[1], last[1], fraction) / _FULL
        blue *= _between(first[2], last[2], fraction) / _FULL
    return round(_FULL * red), round(_FULL * green), round(_FULL * blue)


def _between(first: int, last: int, fraction: float) -> float:
    return first + (last - first) * fraction


def as_hex(color: Color) -> str:
    """Returns a color in Matplotlib's form.

    >>> as_hex((18, 84, 158))
    '#12549e'
    """
    return "#{:02x}{:02x}{:02x}".format(*color)


def ink_on(color: Color) -> str:
    """Returns the readable color of text: `white` on dark colors, `black` on light.

    >>> ink_on((18, 84, 158)), ink_on((252, 212, 158))
    ('white', 'black')
    """
    luminance = 0.0
    for weight, channel in zip(_LUMINANCE_WEIGHTS, color, strict=True):
        luminance += weight * _linear(channel)
    if luminance < _DARK:
        return "white"
    return "black"


def _linear(channel: int) -> float:
    """Returns the linear intensity of an sRGB channel, from 0 to 1 (WCAG 2.2)."""
    if channel <= 10:
        return channel / _FULL / 12.92
    return float(((channel / _FULL + 0.055) / 1.055) ** 2.4)

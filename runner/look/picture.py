"""A picture of a dataset's examples, with their labels."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from runner.data.base import Array, ArraySpec
from runner.look.contents import cell
from runner.report.figures import save, subplots

COLUMNS = 8
ROWS = 4


def draw(path: Path, arrays: Mapping[str, Array], specs: Mapping[str, ArraySpec], image: str, title: str) -> None:
    """Draws examples side by side, below each what its other arrays say.

    Args:
      path: PNG file to write.
      arrays: of the examples by name, each (n, ...), n at most `COLUMNS * ROWS`.
      specs: of the same names.
      image: name of the array that is drawn, (n, H, W, C).
      title: of the picture.
    """
    pictures = arrays[image]
    rows = -(-len(pictures) // COLUMNS)
    figure, panels = subplots(rows, COLUMNS, figsize=(1.35 * COLUMNS, 1.62 * rows + 0.5))
    flat = np.ravel(np.asarray(panels, object))
    others = [name for name in specs if name != image]
    for axes in flat:
        axes.axis("off")
    for place, axes in zip(range(len(pictures)), flat, strict=False):
        shown = _shown(pictures[place])
        axes.imshow(shown, cmap="gray", interpolation="nearest", vmin=0.0, vmax=1.0)
        caption = "\n".join(cell(arrays[name][place], specs[name]) for name in others)
        axes.text(0.5, -0.04, caption, ha="center", va="top", fontsize=8, transform=axes.transAxes)
    figure.suptitle(title, fontsize=11)
    save(figure, path)


def _shown(image: Array) -> Array:
    """Returns an (H, W, C) image as fractions that can be drawn; of other than 3 or 4 channels the first."""
    values = image.astype(np.float64) / (255.0 if image.dtype == np.uint8 else 1.0)
    if values.min(initial=0.0) < 0.0 or values.max(initial=0.0) > 1.0:
        values = (values - values.min()) / max(float(values.max() - values.min()), 1e-12)
    return values if values.shape[-1] in (3, 4) else values[..., 0]

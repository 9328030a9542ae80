"""A picture of a dataset's examples, with their labels."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from runner.data.base import Array, ArraySpec
from runner.look.contents import cell
from runner.report.figures import save, subplots

COLUMNS = 8
ROWS = 4  # at most


def draw(path: Path, arrays: Mapping[str, Array], specs: Mapping[str, ArraySpec], image: str, title: str) -> None:
    """Draws examples side by side, each with the values of its other arrays below it.

    Args:
      path: PNG file to write.
      arrays: of the examples by name, each (n, ...), n at most `COLUMNS * ROWS`.
      specs: of the same names.
      image: name of the array that is drawn, (n, H, W, C).
      title: the title of the picture.
    """
    images = arrays[image]
    rows = -(-len(images) // COLUMNS)  # rounded up
    figure, grid = subplots(rows, COLUMNS, figsize=(1.35 * COLUMNS, 1.62 * rows + 0.5))
    panels = np.ravel(np.asarray(grid, object))
    for axes in panels:  # the last row may have panels without an image
        axes.axis("off")
    others = [name for name in specs if name != image]
    for index, axes in zip(range(len(images)), panels, strict=False):
        axes.imshow(_fractions(images[index]), cmap="gray", interpolation="nearest", vmin=0.0, vmax=1.0)
        caption = "\n".join(cell(arrays[name][index], specs[name]) for name in others)
        axes.text(0.5, -0.04, caption, ha="center", va="top", fontsize=8, transform=axes.transAxes)
    figure.suptitle(title, fontsize=11)
    save(figure, path)


def _fractions(image: Array) -> Array:
    """Returns an (H, W, C) image with values from 0 to 1; of other than 3 or 4 channels the first one, (H, W)."""
    brightest = float(np.iinfo(np.uint8).max) if image.dtype == np.uint8 else 1.0
    values = image.astype(np.float64) / brightest
    low = float(values.min(initial=0.0))
    high = float(values.max(initial=0.0))
    if low < 0.0 or high > 1.0:  # standardized, or of a type with other bounds
        values = (values - values.min()) / max(float(values.max() - values.min()), 1e-12)
    return values if values.shape[-1] in (3, 4) else values[..., 0]

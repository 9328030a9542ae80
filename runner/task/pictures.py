"""Pictures of tasks: confusion of classes, scores of labels, classes of pixels, predicted against true values."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import colormaps
from matplotlib.colors import LinearSegmentedColormap, ListedColormap
from matplotlib.ticker import PercentFormatter

from runner import figures
from runner.data.base import Array

# Classes up to which the cells of a confusion matrix are wide enough for a number.
_MOST_LABELED = 20
# The diagonal of a confusion matrix, and its errors from pale to dark.
_RIGHT = "#DDE7EF"
_ERRORS = LinearSegmentedColormap.from_list("errors", ("#FDDCC8", "#F0813F", "#A63603"))
# Columns of a target with a panel, and the points of one; more points hide each other, so their density is drawn.
_MOST_PANELS = 6
_MOST_POINTS = 2000


def confusion(
    path: Path, matrix: Array, class_names: Sequence[str], split: str = "test", unit: str = "examples"
) -> None:
    """Draws a confusion matrix: errors by their share of the label's examples, and the diagonal in one pale color.

    Colors reach up to the most frequent error, not to 1: next to a diagonal of 97% no error would be visible. More
    classes than have room for names have none.
    """
    count = len(matrix)
    has_names = count <= _MOST_LABELED
    # Inches: named cells are wide enough for their number, others fill a page.
    size = 3.5 + 0.56 * count
    if not has_names:
        size = min(max(0.1 * count, 7.5), 13.0)
    figure, axes = figures.subplots(1, 1, (size, size * 0.92))
    shares = matrix / np.maximum(matrix.sum(axis=1, keepdims=True), 1)
    is_diagonal = np.eye(count, dtype=bool)
    errors = np.where(is_diagonal | (matrix == 0), np.nan, shares)
    most = float(np.nanmax(errors, initial=0.0))
    axes.imshow(np.where(is_diagonal, 0.0, np.nan), cmap=ListedColormap([_RIGHT]), zorder=1)
    image = axes.imshow(errors, cmap=_ERRORS, vmin=0, vmax=most or 1.0, zorder=2)
    if most:
        share = PercentFormatter(1.0, decimals=None)
        figure.colorbar(image, ax=axes, label=f"errors, of the label's {unit}", format=share, fraction=0.046)
    right = int(np.trace(matrix))
    whole = int(matrix.sum())
    axes.set(xlabel="predicted", ylabel="label")
    axes.set_title(f"{whole - right:,} of {whole:,} {split} {unit} are wrong, {right / max(whole, 1):.2%} right")
    if not has_names:
        figures.save(figure, path)
        return
    names = list(map(figures.short, class_names))
    turned: dict[str, Any] = {"rotation": 45, "ha": "right"} if max(map(len, names)) > 3 else {}
    axes.set_xticks(range(count), names, **turned)
    axes.set_yticks(range(count), names)
    # Thin lines between rows and columns.
    axes.set_xticks(np.arange(0.5, count - 1), minor=True)
    axes.set_yticks(np.arange(0.5, count - 1), minor=True)
    axes.grid(which="minor", color="#E4E4E4", lw=0.6, zorder=0)
    axes.tick_params(which="minor", length=0)
    for row, column in zip(*np.nonzero(matrix), strict=True):
        text = f"{matrix[row, column]:,}"
        look: dict[str, Any] = {"color": "black", "weight": "normal"}
        if row == column:
            text += f"\n{shares[row, column]:.1%}"
        else:
            look = {"color": figures.ink(image.cmap(image.norm(shares[row, column]))), "weight": "bold"}
        # Inside its cell, so the layout need not measure it.
        axes.text(column, row, text, ha="center", va="center", fontsize=8, zorder=3, in_layout=False, **look)
    figures.save(figure, path)


def segmentation(
    path: Path, images: Array, labels: Array, predictions: Array, class_names: Sequence[str], split: str = "test"
) -> None:
    """Draws images in columns, and below each its labels and its predictions."""
    count = len(images)
    figure, panels = figures.subplots(3, count, (1.7 * count + 1.6, 6.0))
    grid = np.asarray(panels, object).reshape(3, count)
    colors = colormaps["turbo"](np.linspace(0.05, 0.95, max(len(class_names), 2)))
    scale: dict[str, Any] = {"cmap": ListedColormap(colors).with_extremes(under="#FFFFFF")}
    scale |= {"vmin": -0.5, "vmax": len(class_names) - 0.5}
    shown: Any = None
    for column in range(count):
        figures.image_at(grid[0, column], images[column], (0.0, 1.0, 1.0, 0.0))
        for row, classes in ((1, labels[column]), (2, predictions[column])):
            shown = grid[row, column].imshow(classes, interpolation="nearest", **scale)
    for row, name in enumerate(("image", "label", "predicted")):
        grid[row, 0].set_ylabel(name)
        for axes in grid[row]:
            axes.set(xticks=[], yticks=[])
    bar = figure.colorbar(shown, ax=list(grid.reshape(-1)), fraction=0.03)
    if len(class_names) <= _MOST_LABELED:
        bar.set_ticks(range(len(class_names)), labels=list(map(figures.short, class_names)))
    note = "; labels that do not count are white" if (labels < 0).any() else ""
    figure.suptitle(f"the first {count} {split} examples{note}")
    figures.save(figure, path)


def predicted(path: Path, true: Array, predicted: Array, names: Sequence[str], split: str = "test") -> None:
    """Draws predictions against true values, one panel per column of the target; those on the dashed line are exact.

    Args:
      true: float64 (N, K).
      predicted: float64 (N, K).
    """
    shown = min(len(names), _MOST_PANELS)
    across = min(shown, 3)
    down = -(-shown // across)
    figure, panels = figures.subplots(down, across, (0.6 + 4.6 * across, 0.6 + 4.4 * down))
    flat = np.asarray(panels, object).reshape(-1)
    for axes in flat[shown:]:
        axes.axis("off")
    for column, axes in enumerate(flat[:shown]):
        pairs = np.stack([true[:, column], predicted[:, column]])
        finite = pairs[:, np.isfinite(pairs).all(axis=0)]
        x, y = finite
        low = 0.0
        high = 0.0
        if finite.size:
            low = float(finite.min())
            high = float(finite.max())
        if low == high:
            # An axis needs a range.
            low -= 0.5
            high += 0.5
        edge = 0.03 * (high - low)
        if len(x) > _MOST_POINTS:
            density: dict[str, Any] = {"gridsize": 50, "bins": "log", "mincnt": 1, "cmap": "Blues"}
            axes.hexbin(x, y, extent=(low, high, low, high), **density)
        else:
            axes.scatter(x, y, s=10, alpha=0.45, color=figures.TRAIN, linewidths=0)
        axes.plot((low, high), (low, high), "--", color=figures.EVALUATED, lw=1)
        axes.set(xlim=(low - edge, high + edge), ylim=(low - edge, high + edge), aspect="equal")
        axes.set(xlabel="true", ylabel="predicted", title=figures.short(names[column], 40))
    note = f"; {shown} of {len(names)} columns" if shown < len(names) else ""
    figure.suptitle(f"{len(true):,} {split} examples, predicted against true{note}")
    figures.save(figure, path)

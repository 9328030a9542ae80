"""Pictures of predictions: misclassified examples, confusion matrices, label scores, predicted against true."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unicodedata import east_asian_width

import numpy as np
from matplotlib import colormaps
from matplotlib.colors import LinearSegmentedColormap, ListedColormap
from matplotlib.ticker import PercentFormatter

from runner.data.base import Array
from runner.host.terminal import clean
from runner.report import palette
from runner.report.figures import ink, save, subplots

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Sizes that keep a picture readable at the width of a page.
# Classes up to which the cells of a confusion matrix are wide enough for a number.
_MOST_LABELED = 20
# Misclassified examples per row.
_COLUMNS = 6
# Characters of a class name below an image.
_LONGEST_NAME = 17
# Characters of a column's name above its panel.
_LONGEST_COLUMN = 40
# Labels with a bar.
_MOST_BARS = 30
# Columns of a target with a panel.
_MOST_PANELS = 6
# Points that are drawn one by one; more would hide each other, so their density is drawn.
_MOST_POINTS = 2000
# Errors that are listed next to a matrix without class names.
_MOST_LISTED = 24

_RED = palette.EVALUATED
_BLUE = palette.TRAIN
_GRAY = palette.TRAIN_STEPS
# The diagonal of a confusion matrix, and its errors from pale to dark.
_RIGHT = "#DDE7EF"
_ERRORS = LinearSegmentedColormap.from_list("errors", ("#FDDCC8", "#F0813F", "#A63603"))


def wrong(path: Path, images: Array, captions: Sequence[tuple[str, str]], title: str, total: int) -> None:
    """Draws misclassified examples in their order.

    Args:
      path: PNG file to write.
      images: (n, H, W, C), uint8, or floats in [0, 1].
      captions: label and prediction of each image.
      title: the title of the picture.
      total: number of misclassified examples, of which these are the first.
    """
    count = len(images)
    columns = min(_COLUMNS, max(count, 3))
    rows = max(-(-count // _COLUMNS), 1)
    figure, axes = subplots(1, 1, figsize=(1.55 * columns + 0.2, 2.0 * rows + 0.8))
    axes.set(xlim=(-0.02, columns + 0.02), ylim=(rows * 1.36, -0.02), aspect="equal")
    axes.axis("off")
    if total > count:
        title += f"; the {count} most confident"
    if count:
        title += "\nbelow each its label, and in red the prediction with its probability"
    axes.set_title(title, fontsize=10)
    for index, (image, (label, guess)) in enumerate(zip(images, captions, strict=True)):
        x = index % _COLUMNS + 0.04
        y = index // _COLUMNS * 1.36
        _image(axes, image, (x, x + 0.92, y + 0.92, y))
        axes.text(x + 0.46, y + 0.96, short(label), ha="center", va="top", fontsize=8)
        axes.text(x + 0.46, y + 1.12, guess, ha="center", va="top", fontsize=8, color=_RED)
    if not count:
        axes.text(columns / 2, 0.5, "none", ha="center", va="center", fontsize=12)
    save(figure, path)


def _image(axes: Axes, image: Array, extent: tuple[float, float, float, float]) -> None:
    """Draws an image (H, W, C) into a part of the axes: in color if it has 3 channels, else its first one in gray."""
    is_bytes = image.dtype == np.uint8
    if image.shape[-1] == 3:
        colors = image if is_bytes else np.clip(image, 0.0, 1.0)
        axes.imshow(colors, extent=extent, interpolation="nearest", aspect="auto")
        return
    gray = image[..., 0]
    white = 255 if is_bytes else 1
    axes.imshow(gray, cmap="gray", vmin=0, vmax=white, extent=extent, interpolation="nearest", aspect="auto")


def short(name: str, longest: int = _LONGEST_NAME) -> str:
    """Returns a name that fits below an image, in one line that any font can draw."""
    name = clean(" ".join(name.split()))
    # East Asian characters are twice as wide.
    widths = np.cumsum([2 if east_asian_width(character) in "WF" else 1 for character in name])
    if not name or widths[-1] <= longest:
        return name
    return name[: np.searchsorted(widths, longest - 1, "right")] + "…"


def confusion(
    path: Path, matrix: Array, class_names: Sequence[str], split: str = "test", unit: str = "examples"
) -> None:
    """Draws a confusion matrix: errors by their share of the label's examples, and the diagonal in one pale color.

    Colors reach up to the most frequent error, not to 1: next to a diagonal of 97% no error would be visible. With
    more classes than have room for names, the most frequent errors are listed next to the matrix.

    Args:
      path: PNG file to write.
      matrix: int (C, C), rows are labels, columns predictions.
      class_names: C names.
      split: the split's name, for the title.
      unit: what is counted.
    """
    count = len(matrix)
    has_names = count <= _MOST_LABELED
    # Inches: named cells are wide enough for their number, others fill a page.
    size = 3.5 + 0.56 * count
    if not has_names:
        size = min(max(0.1 * count, 7.5), 13.0)
    figure, axes = subplots(1, 1, figsize=(size, size * 0.92))
    shares = matrix / np.maximum(matrix.sum(axis=1, keepdims=True), 1)
    is_diagonal = np.eye(count, dtype=bool)
    errors = np.where(is_diagonal | (matrix == 0), np.nan, shares)
    most = float(np.nanmax(errors, initial=0.0))
    axes.imshow(np.where(is_diagonal, 0.0, np.nan), cmap=ListedColormap([_RIGHT]), zorder=1)
    image = axes.imshow(errors, cmap=_ERRORS, vmin=0, vmax=most or 1.0, zorder=2)
    if most:
        share = PercentFormatter(1.0, decimals=None)
        # The list of errors is to the right of a matrix without names.
        location = "right" if has_names else "bottom"
        label = f"errors, of the label's {unit}"
        figure.colorbar(image, ax=axes, fraction=0.046, location=location, label=label, format=share)
    right = int(np.trace(matrix))
    whole = int(matrix.sum())
    axes.set(xlabel="predicted", ylabel="label")
    axes.set_title(f"{whole - right:,} of {whole:,} {split} {unit} are wrong, {right / max(whole, 1):.2%} right")
    if not has_names:
        _list_errors(axes, np.where(is_diagonal, 0, matrix), class_names)
        save(figure, path)
        return
    _name_classes(axes, [short(name) for name in class_names])
    for row, column in zip(*np.nonzero(matrix), strict=True):
        text = f"{matrix[row, column]:,}"
        if row == column:
            text += f"\n{shares[row, column]:.1%}"
            color: Any = "black"
            weight = "normal"
        else:
            color = ink(image.cmap(image.norm(shares[row, column])))
            weight = "bold"
        axes.text(column, row, text, ha="center", va="center", fontsize=8, color=color, weight=weight, zorder=3)
    save(figure, path)


def _name_classes(axes: Axes, names: Sequence[str]) -> None:
    """Names rows and columns, with thin lines between them."""
    if max(len(name) for name in names) > 3:
        axes.set_xticks(range(len(names)), names, rotation=45, ha="right")
    else:
        axes.set_xticks(range(len(names)), names)
    axes.set_yticks(range(len(names)), names)
    axes.set_xticks(np.arange(0.5, len(names) - 1), minor=True)
    axes.set_yticks(np.arange(0.5, len(names) - 1), minor=True)
    axes.grid(which="minor", color="#E4E4E4", lw=0.6, zorder=0)
    axes.tick_params(which="minor", length=0)


def _list_errors(axes: Axes, wrong: Array, class_names: Sequence[str]) -> None:
    """Lists the most frequent errors, with label and prediction, right of the axes."""
    lines = ["most frequent errors"]
    for index in np.argsort(-wrong, axis=None, kind="stable")[:_MOST_LISTED]:
        label, prediction = divmod(int(index), len(wrong))
        count = wrong[label, prediction]
        if count:
            lines.append(f"{count:,}: {short(class_names[label])} taken for {short(class_names[prediction])}")
    text = "\n".join(lines) if len(lines) > 1 else ""
    axes.text(1.04, 1.0, text, fontsize=9, va="top", linespacing=1.6, transform=axes.transAxes)


def labels(
    path: Path, rows: Sequence[tuple[str, float, float | None, float | None]], counts: Array, split: str = "test"
) -> None:
    """Draws F1, precision and recall of each label, the most frequent labels first.

    Args:
      path: PNG file to write.
      rows: (name, F1, precision, recall).
      counts: (L,), number of examples with each label.
      split: the split's name, for the title.
    """
    order = np.argsort(-counts, kind="stable")[:_MOST_BARS]
    shown = [rows[index] for index in order]
    figure, axes = subplots(1, 1, figsize=(8.0, 1.4 + 0.42 * len(shown)))
    heights = np.arange(len(shown))
    f1 = [row[1] for row in shown]
    precision = np.array([row[2] for row in shown], float)
    recall = np.array([row[3] for row in shown], float)
    axes.barh(heights, f1, color=_GRAY, height=0.7, label="F1")
    # None has become NaN, which Matplotlib leaves out.
    axes.plot(precision, heights, "o", color=_BLUE, label="precision", markersize=6)
    axes.plot(recall, heights, "s", color=_RED, label="recall", markersize=6)
    names = [f"{short(rows[index][0])}, {counts[index]:,}" for index in order]
    axes.set_yticks(heights, names)
    axes.set(xlim=(-0.02, 1.02), ylim=(len(shown) - 0.4, -0.6))
    title = f"{split} examples by label"
    if len(shown) < len(rows):
        title += f", the {len(shown)} most frequent of {len(rows)}"
    axes.set_title(title)
    axes.grid(axis="x", alpha=0.25)
    axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0))
    save(figure, path)


def segmentation(
    path: Path,
    images: Array,
    labels: Array,
    predictions: Array,
    class_names: Sequence[str],
    split: str = "test",
) -> None:
    """Draws images in columns, and below each its labels and its predictions.

    Args:
      path: PNG file to write.
      images: (n, H, W, C), uint8, or floats in [0, 1].
      labels: int (n, h, w), -1 where no label counts.
      predictions: int (n, h, w).
      class_names: in label order.
      split: the split's name, for the title.
    """
    count = len(images)
    figure, panels = subplots(3, count, figsize=(1.7 * count + 1.6, 6.0))
    grid = np.asarray(panels, object).reshape(3, count)
    palette = colormaps["turbo"](np.linspace(0.05, 0.95, max(len(class_names), 2)))
    colors = ListedColormap(palette).with_extremes(under="#FFFFFF")
    shown: Any = None
    for column in range(count):
        _image(grid[0, column], images[column], (0.0, 1.0, 1.0, 0.0))
        for row, classes in ((1, labels[column]), (2, predictions[column])):
            shown = grid[row, column].imshow(
                classes, cmap=colors, vmin=-0.5, vmax=len(class_names) - 0.5, interpolation="nearest"
            )
    for row, name in enumerate(("image", "label", "predicted")):
        grid[row, 0].set_ylabel(name)
        for axes in grid[row]:
            axes.set_xticks([])
            axes.set_yticks([])
    bar = figure.colorbar(shown, ax=list(grid.reshape(-1)), fraction=0.03)
    if len(class_names) <= _MOST_LABELED:
        bar.set_ticks(range(len(class_names)), labels=[short(name) for name in class_names])
    title = f"the first {count} {split} examples"
    if (labels < 0).any():
        title += "; labels that do not count are white"
    figure.suptitle(title)
    save(figure, path)


def threshold_curves(
    path: Path, false_positive_rate: Array, recall: Array, precision: Array, areas: tuple[float, float], split: str
) -> None:
    """Draws the ROC curve and the precision-recall curve through the thresholds.

    Args:
      path: PNG file to write.
      false_positive_rate: (N,).
      recall: (N,).
      precision: (n,), of the first n thresholds, those that some example is above.
      areas: under the two curves.
      split: the split's name, for the title.
    """
    figure, (roc, precision_recall) = subplots(1, 2, figsize=(9.4, 4.6))
    roc.plot(false_positive_rate, recall, ".-", color=_BLUE, markersize=3, lw=1.2)
    roc.plot((0, 1), (0, 1), "--", color=_GRAY, lw=1)
    roc.set(xlabel="false positive rate", ylabel="recall (true positive rate)", title=f"ROC, area {areas[0]:.4f}")
    precision_recall.plot(recall[: len(precision)], precision, ".-", color=_BLUE, markersize=3, lw=1.2)
    precision_recall.set(xlabel="recall", ylabel="precision", title=f"precision and recall, area {areas[1]:.4f}")
    for axes in (roc, precision_recall):
        axes.set(xlim=(-0.02, 1.02), ylim=(-0.02, 1.02), aspect="equal")
        axes.grid(alpha=0.25)
    figure.suptitle(f"{split} examples at {len(recall)} thresholds")
    save(figure, path)


def predicted(path: Path, true: Array, predicted: Array, names: Sequence[str], split: str = "test") -> None:
    """Draws predictions against true values, one panel per column of the target.

    Args:
      path: PNG file to write.
      true: float64 (N, K).
      predicted: float64 (N, K).
      names: the names of the columns.
      split: the split's name, for the title.
    """
    shown = min(len(names), _MOST_PANELS)
    across = min(shown, 3)
    down = -(-shown // across)
    figure, panels = subplots(down, across, figsize=(0.6 + 4.6 * across, 0.6 + 4.4 * down))
    flat = np.asarray(panels, object).reshape(-1)
    for axes in flat[shown:]:
        axes.axis("off")
    for column, axes in enumerate(flat[:shown]):
        _against(axes, true[:, column], predicted[:, column])
        axes.set_title(short(names[column], _LONGEST_COLUMN))
    title = f"{len(true):,} {split} examples, predicted against true"
    if shown < len(names):
        title += f"; {shown} of {len(names)} columns"
    figure.suptitle(title)
    save(figure, path)


def _against(axes: Axes, true: Array, predicted: Array) -> None:
    """Draws one column (N,); predictions on the dashed line are exact."""
    finite = np.isfinite(true) & np.isfinite(predicted)
    true = true[finite]
    predicted = predicted[finite]
    low = float(min(true.min(initial=np.inf), predicted.min(initial=np.inf)))
    high = float(max(true.max(initial=-np.inf), predicted.max(initial=-np.inf)))
    if not len(true):
        low = high = 0.0
    if low == high:
        # An axis needs a range.
        low -= 0.5
        high += 0.5
    edge = 0.03 * (high - low)
    if len(true) > _MOST_POINTS:
        extent = (low, high, low, high)
        axes.hexbin(true, predicted, gridsize=50, bins="log", mincnt=1, cmap="Blues", extent=extent)
    else:
        axes.scatter(true, predicted, s=10, alpha=0.45, color=_BLUE, linewidths=0)
    axes.plot((low, high), (low, high), "--", color=_RED, lw=1)
    axes.set(xlim=(low - edge, high + edge), ylim=(low - edge, high + edge), aspect="equal")
    axes.set(xlabel="true", ylabel="predicted")

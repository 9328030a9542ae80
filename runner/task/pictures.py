"""Pictures of what a model gets right and wrong."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from matplotlib.colors import LinearSegmentedColormap, ListedColormap
from matplotlib.ticker import PercentFormatter

from runner.data.base import Array
from runner.report import palette
from runner.report.figures import ink, save, subplots

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_MOST_LABELLED = 20  # classes whose cells are wide enough to hold a number
_COLUMNS = 6  # of the wrong examples that are shown
_LONGEST_NAME = 17  # characters of a class's name below an image
_MOST_BARS = 30  # labels that are shown
_MOST_PANELS = 6  # columns of a target that are shown
_MOST_POINTS = 2000  # that are drawn one by one; of more, their density
_MOST_LISTED = 24  # errors that are written beside a matrix without names
_RED = palette.EVALUATED
_BLUE = palette.TRAIN
_GREY = palette.TRAIN_STEPS
_RIGHT = "#DDE7EF"  # what is right, behind errors from pale to dark
_ERRORS = LinearSegmentedColormap.from_list("errors", ("#FDDCC8", "#F0813F", "#A63603"))


def wrong(path: Path, images: Array, captions: Sequence[tuple[str, str]], title: str, total: int) -> None:
    """Draws examples that were got wrong, in the order given.

    Args:
      path: PNG file to write.
      images: (n, H, W, C), uint8, or fractions in [0, 1].
      captions: of each, its label and what was predicted.
      title: of the picture.
      total: how many were got wrong.
    """
    count = len(images)
    columns = min(_COLUMNS, max(count, 3))
    rows = max(-(-count // _COLUMNS), 1)
    figure, axes = subplots(1, 1, figsize=(1.55 * columns + 0.2, 2.0 * rows + 0.8))
    axes.set(xlim=(-0.02, columns + 0.02), ylim=(rows * 1.36, -0.02), aspect="equal")
    axes.axis("off")
    title += f"; the {count} most confident" if total > count else ""
    told = "\nbelow each its label, and in red the prediction with its probability" if count else ""
    axes.set_title(title + told, fontsize=10)
    for place, (image, (label, guess)) in enumerate(zip(images, captions, strict=True)):
        x = place % _COLUMNS + 0.04
        y = place // _COLUMNS * 1.36
        _image(axes, image, (x, x + 0.92, y + 0.92, y))
        axes.text(x + 0.46, y + 0.96, short(label), ha="center", va="top", fontsize=8)
        axes.text(x + 0.46, y + 1.12, guess, ha="center", va="top", fontsize=8, color=_RED)
    if not count:
        axes.text(columns / 2, 0.5, "none", ha="center", va="center", fontsize=12)
    save(figure, path)


def _image(axes: Axes, image: Array, extent: tuple[float, float, float, float]) -> None:
    """Draws one (H, W, C) image into a place of the axes; of other than 3 channels the first, in gray."""
    brightest = 255 if image.dtype == np.uint8 else 1
    if image.shape[-1] == 3:
        shown = image if image.dtype == np.uint8 else np.clip(image, 0.0, 1.0)
        axes.imshow(shown, extent=extent, interpolation="nearest", aspect="auto")
    else:
        axes.imshow(
            image[..., 0], cmap="gray", vmin=0, vmax=brightest, extent=extent, interpolation="nearest", aspect="auto"
        )


def short(name: str) -> str:
    """Returns a name that fits below an image."""
    return name if len(name) <= _LONGEST_NAME else name[: _LONGEST_NAME - 1] + "…"


def confusion(path: Path, matrix: Array, class_names: Sequence[str], split: str = "test") -> None:
    """Draws the confusion matrix: errors by their share of the label's examples, what is right in one pale color.

    Colors reach up to the most frequent error, not to 1: beside a diagonal of 97 in 100 no error would be seen. Of
    more classes than have room for a name, the most frequent errors are written beside the matrix.

    Args:
      path: PNG file to write.
      matrix: int (C, C), rows are labels, columns predictions.
      class_names: C names.
      split: the split's name, for the title.
    """
    count = len(matrix)
    named = len(matrix) <= _MOST_LABELLED
    size = 3.5 + 0.56 * count if named else min(max(0.1 * count, 7.5), 13.0)
    figure, axes = subplots(1, 1, figsize=(size, size * 0.92))
    shares = matrix / np.maximum(matrix.sum(axis=1, keepdims=True), 1)
    errors = np.where(np.eye(count, dtype=bool) | (matrix == 0), np.nan, shares)
    most = float(np.nanmax(errors, initial=0.0))
    axes.imshow(np.where(np.eye(count, dtype=bool), 0.0, np.nan), cmap=ListedColormap([_RIGHT]), zorder=1)
    image = axes.imshow(errors, cmap=_ERRORS, vmin=0, vmax=most or 1.0, zorder=2)
    if most:
        share = PercentFormatter(1.0, decimals=None)
        where = "right" if named else "bottom"
        label = "errors, of the label's examples"
        figure.colorbar(image, ax=axes, fraction=0.046, location=where, label=label, format=share)
    right = int(np.trace(matrix))
    whole = int(matrix.sum())
    axes.set(xlabel="predicted", ylabel="label")
    axes.set_title(f"{whole - right:,} of {whole:,} {split} examples are wrong, {right / max(whole, 1):.2%} right")
    if named:
        _name_classes(axes, list(map(short, class_names)))
        for row, column in zip(*np.nonzero(matrix), strict=True):
            color = "black" if row == column else ink(image.cmap(image.norm(shares[row, column])))
            text = f"{matrix[row, column]:,}" + (f"\n{shares[row, column]:.1%}" if row == column else "")
            weight = "normal" if row == column else "bold"
            axes.text(column, row, text, ha="center", va="center", fontsize=8, color=color, weight=weight, zorder=3)
    else:
        _list_errors(axes, np.where(np.eye(count, dtype=bool), 0, matrix), class_names)
    save(figure, path)


def _name_classes(axes: Axes, names: Sequence[str]) -> None:
    """Names rows and columns, with thin lines between them."""
    turned = 45 if max(map(len, names)) > 3 else 0
    axes.set_xticks(range(len(names)), names, rotation=turned, ha="right" if turned else "center")
    axes.set_yticks(range(len(names)), names)
    axes.set_xticks(np.arange(0.5, len(names) - 1), minor=True)
    axes.set_yticks(np.arange(0.5, len(names) - 1), minor=True)
    axes.grid(which="minor", color="#E4E4E4", lw=0.6, zorder=0)
    axes.tick_params(which="minor", length=0)


def _list_errors(axes: Axes, wrong: Array, class_names: Sequence[str]) -> None:
    """Writes the most frequent errors, the label and what was predicted."""
    places = np.argsort(-wrong, axis=None, kind="stable")[:_MOST_LISTED]
    pairs = [divmod(int(place), len(wrong)) for place in places if wrong.flat[place]]
    lines = [
        f"{wrong[pair]:,}: {short(class_names[pair[0]])} taken for {short(class_names[pair[1]])}" for pair in pairs
    ]
    text = "\n".join(["most frequent errors", *lines] if lines else [])
    axes.text(1.04, 1.0, text, fontsize=9, va="top", linespacing=1.6, transform=axes.transAxes)


def labels(
    path: Path, rows: Sequence[tuple[str, float, float | None, float | None]], counts: Array, split: str = "test"
) -> None:
    """Draws F1, precision and recall of each label, the most frequent labels first.

    Args:
      path: PNG file to write.
      rows: (name, F1, precision, recall).
      counts: (L,), examples that have the label.
      split: the split's name, for the title.
    """
    order = np.argsort(-counts, kind="stable")[:_MOST_BARS]
    shown = [rows[place] for place in order]
    figure, axes = subplots(1, 1, figsize=(8.0, 1.4 + 0.42 * len(shown)))
    places = np.arange(len(shown))
    axes.barh(places, [f1 for _, f1, _, _ in shown], color=_GREY, height=0.7, label="F1")
    for index, (name, color, marker) in enumerate((("precision", _BLUE, "o"), ("recall", _RED, "s"))):
        found = [np.nan if row[2 + index] is None else row[2 + index] for row in shown]
        axes.plot(found, places, marker, color=color, label=name, markersize=6)
    names = [f"{short(name)}, {counts[place]:,}" for place, (name, *_) in zip(order, shown, strict=True)]
    axes.set_yticks(places, names)
    axes.set(xlim=(-0.02, 1.02), ylim=(len(shown) - 0.4, -0.6))
    hidden = len(rows) - len(shown)
    axes.set_title(
        f"{split} examples by label" + (f", the {len(shown)} most frequent of {len(rows)}" if hidden else "")
    )
    axes.grid(axis="x", alpha=0.25)
    axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0))
    save(figure, path)


def predicted(path: Path, true: Array, predicted: Array, names: Sequence[str], split: str = "test") -> None:
    """Draws predictions against what is true, a panel a column of the target.

    Args:
      path: PNG file to write.
      true: float64 (N, K).
      predicted: likewise.
      names: of the columns.
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
        axes.set_title(names[column])
    hidden = f"; {shown} of {len(names)} columns" if shown < len(names) else ""
    figure.suptitle(f"{len(true):,} {split} examples, predicted against true{hidden}")
    save(figure, path)


def _against(axes: Axes, true: Array, predicted: Array) -> None:
    """Draws one column; the dashed line is where predictions are right."""
    finite = np.isfinite(true) & np.isfinite(predicted)
    true = true[finite]
    predicted = predicted[finite]
    low = float(min(true.min(initial=np.inf), predicted.min(initial=np.inf)))
    high = float(max(true.max(initial=-np.inf), predicted.max(initial=-np.inf)))
    if not len(true) or low == high:
        middle = low if len(true) else 0.0
        low = middle - 0.5
        high = middle + 0.5
    edge = 0.03 * (high - low)
    if len(true) > _MOST_POINTS:
        extent = (low, high, low, high)
        axes.hexbin(true, predicted, gridsize=50, bins="log", mincnt=1, cmap="Blues", extent=extent)
    else:
        axes.scatter(true, predicted, s=10, alpha=0.45, color=_BLUE, linewidths=0)
    axes.plot((low, high), (low, high), "--", color=_RED, lw=1)
    axes.set(xlim=(low - edge, high + edge), ylim=(low - edge, high + edge), aspect="equal")
    axes.set(xlabel="true", ylabel="predicted")

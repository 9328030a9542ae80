"""Pictures of a run: loss and accuracy curves, the confusion matrix."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from runner.engine.base import Array, EvalMetrics

_MOST_LABELLED = 20  # classes whose cells are wide enough to hold a number


def curves(
    path: Path,
    train: Sequence[tuple[int, float, float]],
    evals: Sequence[tuple[int, EvalMetrics]],
    evaluated: str = "test",
) -> None:
    """Draws loss and accuracy by step for training and test.

    Args:
      path: PNG file to write.
      train: (step, loss, accuracy) of logged windows.
      evals: (step, metrics) of evaluations.
      evaluated: what evaluations are on, in a word.
    """
    figure, (left, right) = subplots(1, 2, figsize=(11, 4.2))
    steps = [step for step, _, _ in train]
    for axes, index, name in ((left, 1, "loss"), (right, 2, "accuracy")):
        axes.plot(steps, [point[index] for point in train], color="#9db7d5", lw=1, label="train")
        axes.plot(
            [step for step, _ in evals],
            [getattr(metrics, name) for _, metrics in evals],
            color="#c23b22",
            marker="o",
            label=evaluated,
        )
        axes.set_xlabel("training step")
        axes.set_title(f"{name} (cross-entropy, nats)" if name == "loss" else name)
        axes.grid(alpha=0.25)
        axes.legend()
    if train and min(loss for _, loss, _ in train) > 0:
        left.set_yscale("log")
    save(figure, path)


def confusion(path: Path, matrix: Array, class_names: Sequence[str]) -> None:
    """Draws the confusion matrix.

    Args:
      path: PNG file to write.
      matrix: int (C, C), rows are labels, columns predictions.
      class_names: C names.
    """
    count = len(matrix)
    size = min(14.0, 3.5 + 0.5 * count)
    figure, axes = subplots(1, 1, figsize=(size, size * 0.92))
    shares = matrix / np.maximum(matrix.sum(axis=1, keepdims=True), 1)
    image = axes.imshow(shares, cmap="Blues", vmin=0, vmax=1)
    figure.colorbar(image, ax=axes, fraction=0.046, label="share of the label's examples")
    axes.set_xlabel("predicted")
    axes.set_ylabel("label")
    right = np.trace(matrix) / max(matrix.sum(), 1)
    axes.set_title(f"test examples by label and prediction, {right:.2%} right")
    if count <= _MOST_LABELLED:
        turned = 45 if max(map(len, class_names)) > 3 else 0
        axes.set_xticks(range(count), class_names, rotation=turned, ha="right" if turned else "center")
        axes.set_yticks(range(count), class_names)
        for row in range(count):
            for column in range(count):
                dark = shares[row, column] > 0.5
                if matrix[row, column]:
                    axes.text(
                        column, row, str(matrix[row, column]), ha="center", va="center", fontsize=8,
                        color="white" if dark else "black",
                    )  # fmt: skip
    save(figure, path)


def sharding(path: Path, shape: Sequence[int], pieces: Mapping[int, Sequence[tuple[int, int]]], title: str) -> None:
    """Draws how a batch of images lies on the devices, each piece with the devices that hold it.

    Args:
      path: PNG file to write.
      shape: (batch, height, width, channel).
      pieces: device number -> (start, stop) of its piece in each dim.
      title: of the picture.
    """
    figure, panels = subplots(1, 2, figsize=(11, 4.6))
    names = ("example of the batch", "row of the image", "column of the image")
    for axes, (down, across) in zip(panels, ((0, 1), (1, 2)), strict=True):
        held: dict[tuple[tuple[int, int], tuple[int, int]], list[int]] = {}
        for device, spans in pieces.items():
            held.setdefault((spans[down], spans[across]), []).append(device)
        for number, ((rows, columns), devices) in enumerate(held.items()):
            size = (columns[1] - columns[0], rows[1] - rows[0])
            _box(axes, (columns[0], rows[0]), size, devices, number)
        axes.set(xlim=(0, shape[across]), ylim=(shape[down], 0), xlabel=names[across], ylabel=names[down])
    figure.suptitle(title)
    save(figure, path)


def _box(axes: Any, corner: tuple[int, int], size: tuple[int, int], devices: Sequence[int], number: int) -> None:
    from matplotlib import colormaps
    from matplotlib.patches import Rectangle

    colour = colormaps["tab20"](number % 20)
    axes.add_patch(Rectangle(corner, *size, facecolor=colour, edgecolor="white", lw=2))
    label = f"device{'s' if len(devices) > 1 else ''} {', '.join(map(str, devices))}"
    axes.text(corner[0] + size[0] / 2, corner[1] + size[1] / 2, label, ha="center", va="center", fontsize=9)


def subplots(rows: int, columns: int, figsize: tuple[float, float]) -> tuple[Any, Any]:
    """Returns a figure and its axes, drawn without a display; `figsize` is in inches."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(rows, columns, figsize=figsize, layout="constrained")
    return figure, axes


def save(figure: Any, path: Path) -> None:
    """Writes a figure as PNG and lets go of it."""
    from matplotlib import pyplot as plt

    figure.savefig(path, dpi=110)
    plt.close(figure)

"""Pictures of a run: loss and accuracy curves, the confusion matrix, the examples that it gets wrong."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from runner.engine.base import Array, EvalMetrics

_MOST_LABELLED = 20  # classes whose cells are wide enough to hold a number
_LOG_FROM = 3.0  # ratio of the largest loss to the smallest from which the axis is logarithmic
_COLUMNS, _ROWS = 6, 4  # of the wrong examples that are shown
_LONGEST_NAME = 17  # characters of a class's name below an image


def curves(
    path: Path,
    train: Sequence[tuple[int, float, float]],
    evals: Sequence[tuple[int, EvalMetrics]],
    steps_per_epoch: int,
    evaluated: str = "test",
) -> None:
    """Draws loss and accuracy by epoch for training and test.

    Args:
      path: PNG file to write.
      train: (step, loss, accuracy) of logged windows.
      evals: (step, metrics) of evaluations.
      steps_per_epoch: training steps an epoch.
      evaluated: what evaluations are on, in a word.
    """
    figure, (left, right) = subplots(1, 2, figsize=(11, 4.2))
    epochs = [step / steps_per_epoch for step, _, _ in train]
    whole = _by_epoch(train, steps_per_epoch)
    for axes, index, name in ((left, 1, "loss"), (right, 2, "accuracy")):
        axes.plot(epochs, [point[index] for point in train], color="#bccde0", lw=1, label="train, a few steps")
        axes.plot(
            list(whole),
            [means[index - 1] for means in whole.values()],
            color="#33658a",
            marker="o",
            label="train, mean of the epoch",
        )
        axes.plot(
            [step / steps_per_epoch for step, _ in evals],
            [getattr(metrics, name) for _, metrics in evals],
            color="#c23b22",
            marker="s",
            label=f"{evaluated}, after the epoch",
        )
        axes.set_xlabel(f"epoch (of {steps_per_epoch:,} steps)")
        axes.xaxis.get_major_locator().set_params(integer=max([*epochs, 0]) >= 2)
        axes.set_title(f"{name} (cross-entropy, nats)" if name == "loss" else name)
        axes.grid(alpha=0.25)
        axes.legend()
    losses = [loss for _, loss, _ in train]
    if losses and 0 < _LOG_FROM * min(losses) < max(losses):
        left.set_yscale("log")
    save(figure, path)


def _by_epoch(train: Sequence[tuple[int, float, float]], steps_per_epoch: int) -> dict[int, tuple[float, float]]:
    """Returns epochs done -> mean loss and accuracy of its steps; each step has the mean of its window."""
    sums: dict[int, Array] = {}
    done = 0
    for end, loss, accuracy in train:
        while done < end:  # a window may reach into the next epoch
            epoch = done // steps_per_epoch + 1
            steps = min(end, epoch * steps_per_epoch) - done
            sums[epoch] = sums.get(epoch, np.zeros(3)) + np.array([steps, steps * loss, steps * accuracy])
            done += steps
    return {epoch: (float(loss / steps), float(accuracy / steps)) for epoch, (steps, loss, accuracy) in sums.items()}


def wrong(
    path: Path, images: Array, labels: Array, logits: Array, class_names: Sequence[str], split: str = "test"
) -> None:
    """Draws the examples that were got wrong with the highest probability, in that order.

    Args:
      path: PNG file to write.
      images: uint8 (N, H, W, C); more examples than logits are left out.
      labels: int (N,).
      logits: float32 (n, num_classes) of the first n examples.
      class_names: in label order.
      split: the split's name, for the title.
    """
    count = len(logits)
    missed, predicted, probability = missed_examples(labels[:count], logits)
    shown = missed[: _COLUMNS * _ROWS]
    columns, rows = min(_COLUMNS, max(len(shown), 3)), max(-(-len(shown) // _COLUMNS), 1)
    figure, axes = subplots(1, 1, figsize=(1.55 * columns + 0.2, 2.0 * rows + 0.8))
    axes.set(xlim=(-0.02, columns + 0.02), ylim=(rows * 1.36, -0.02), aspect="equal")
    axes.axis("off")
    title = f"{len(missed):,} of {count:,} {split} examples are wrong"
    title += f"; the {len(shown)} most confident" if len(missed) > len(shown) else ""
    told = "\nbelow each its label, and in red the prediction with its probability" if len(shown) else ""
    axes.set_title(title + told, fontsize=10)
    for place, index in enumerate(shown):
        x, y = place % _COLUMNS + 0.04, place // _COLUMNS * 1.36
        _image(axes, images[index], (x, x + 0.92, y + 0.92, y))
        guess = f"{_short(class_names[predicted[place]])}, {probability[place]:.1%}"
        axes.text(x + 0.46, y + 0.96, _short(class_names[labels[index]]), ha="center", va="top", fontsize=8)
        axes.text(x + 0.46, y + 1.12, guess, ha="center", va="top", fontsize=8, color="#c23b22")
    if not len(shown):
        axes.text(columns / 2, 0.5, "none", ha="center", va="center", fontsize=12)
    save(figure, path)


def missed_examples(labels: Array, logits: Array) -> tuple[Array, Array, Array]:
    """Finds the examples that were got wrong, the most confident first.

    Args:
      labels: int (N,).
      logits: float32 (N, num_classes).

    Returns:
      Of each: its number, the class predicted, and that class's probability.
    """
    if not len(logits):
        return np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0)
    shifted = np.exp(logits.astype(np.float64) - logits.max(axis=1, keepdims=True))
    predicted, probability = logits.argmax(axis=1), shifted.max(axis=1) / shifted.sum(axis=1)
    missed = np.flatnonzero(predicted != labels)
    missed = missed[np.argsort(-probability[missed], kind="stable")]
    return missed, predicted[missed], probability[missed]


def _image(axes: Any, image: Array, extent: tuple[float, float, float, float]) -> None:
    """Draws one uint8 (H, W, C) image into a place of the axes; of other than 3 channels the first, in grey."""
    if image.shape[-1] == 3:
        axes.imshow(image, extent=extent, interpolation="nearest", aspect="auto")
    else:
        axes.imshow(
            image[..., 0], cmap="gray", vmin=0, vmax=255, extent=extent, interpolation="nearest", aspect="auto"
        )


def _short(name: str) -> str:
    return name if len(name) <= _LONGEST_NAME else name[: _LONGEST_NAME - 1] + "…"


def confusion(path: Path, matrix: Array, class_names: Sequence[str], split: str = "test") -> None:
    """Draws the confusion matrix.

    Args:
      path: PNG file to write.
      matrix: int (C, C), rows are labels, columns predictions.
      class_names: C names.
      split: the split's name, for the title.
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
    axes.set_title(f"{split} examples by label and prediction, {right:.2%} right")
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

    try:
        figure.savefig(path, dpi=110, bbox_inches="tight", pad_inches=0.12)  # else a square plot's label is cut
    finally:
        plt.close(figure)

"""Pictures of a run: the curves of its metrics, and how a batch lies on the devices."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.patches import Rectangle

from runner.data.base import Array, ArraySpec
from runner.report import palette
from runner.report.figures import log_axis, save, show_last_tenth, subplots
from runner.task.base import LOSS, Evaluation

_LOG_FROM = 3.0  # ratio of the largest loss to the smallest from which the axis is logarithmic
_COLUMNS = 2  # of curves beside each other, and of views of an input
_EXAMPLES = "example of the batch"

_CURVE = 2  # points that make a curve

Pieces = Mapping[int, Sequence[tuple[int, int]]]  # device number -> (start, stop) of what it holds in each dim


def has_curves(train: Sequence[object], evaluations: Sequence[object]) -> bool:
    """Returns whether anything was logged often enough to be drawn as a curve."""
    return max(len(train), len(evaluations)) >= _CURVE


def curves(
    path: Path,
    train: Sequence[tuple[int, Mapping[str, float]]],
    evaluations: Sequence[tuple[int, Evaluation]],
    steps_per_epoch: int,
    evaluated: str = "test",
    rising: Collection[str] = (),
) -> None:
    """Draws every metric by epoch, for training steps and for evaluations.

    Args:
      path: PNG file to write.
      train: (step, means by name) of logged windows.
      evaluations: (step, metrics).
      steps_per_epoch: training steps an epoch.
      evaluated: what evaluations are on, in a word.
      rising: the metrics of which more is better.
    """
    first = [*(means for _, means in train[:1]), *(one.metrics for _, one in evaluations[:1])]
    names = list(dict.fromkeys(name for metrics in first for name in metrics))
    rows = max(-(-len(names) // _COLUMNS), 1)
    columns = min(max(len(names), 1), _COLUMNS)
    figure, panels = subplots(rows, columns, figsize=(5.5 * columns, 4.2 * rows))
    whole = _by_epoch(train, steps_per_epoch)
    flat = np.ravel(np.asarray(panels, object))
    for axes, name in zip(flat, names, strict=False):
        steps = [(step / steps_per_epoch, means[name]) for step, means in train if name in means]
        means = [(epoch, found[name]) for epoch, found in whole.items() if name in found]
        tests = [(at / steps_per_epoch, one.metrics[name]) for at, one in evaluations if name in one.metrics]
        if steps:
            axes.plot(*zip(*steps, strict=True), color=palette.TRAIN_STEPS, lw=1, label="train, a few steps")
            axes.plot(*zip(*means, strict=True), color=palette.TRAIN, marker="o", label="train, mean of the epoch")
        if tests:
            label = f"{evaluated}, after the epoch"
            axes.plot(*zip(*tests, strict=True), color=palette.EVALUATED, marker="s", label=label)
        axes.set_xlabel(f"epoch (of {steps_per_epoch:,} steps)")
        axes.xaxis.get_major_locator().set_params(integer=max((at for at, _ in steps + tests), default=0) >= 2)
        axes.set_title(name)
        axes.grid(alpha=0.25)
        values = [value for _, value in steps]
        if name == LOSS and values and 0 < _LOG_FROM * min(values) < max(values):
            log_axis(axes)
        show_last_tenth(axes, [value for _, value in (*steps, *means, *tests)], rises=name in rising)
    for axes in flat[len(names) :]:
        axes.axis("off")
    if names:
        figure.legend(*flat[0].get_legend_handles_labels(), loc="outside lower center", ncols=3, frameon=False)
    save(figure, path)


def _by_epoch(train: Sequence[tuple[int, Mapping[str, float]]], steps_per_epoch: int) -> dict[int, dict[str, float]]:
    """Returns epochs done -> means of its steps by name; each step has the means of its window."""
    sums: dict[int, Array] = {}
    done = 0
    for end, means in train:
        while done < end:  # a window may reach into the next epoch
            epoch = done // steps_per_epoch + 1
            steps = min(end, epoch * steps_per_epoch) - done
            sums[epoch] = sums.get(epoch, np.zeros(1 + len(means))) + steps * np.array([1.0, *means.values()])
            done += steps
    names = list(train[0][1]) if train else []
    return {epoch: dict(zip(names, (row[1:] / row[0]).tolist(), strict=True)) for epoch, row in sums.items()}


def sharding(
    path: Path,
    batch_size: int,
    specs: Mapping[str, ArraySpec],
    pieces: Mapping[str, Pieces],
    axes: Mapping[str, int],
    title: str,
) -> None:
    """Draws how a batch of each input lies on the devices, each piece with the devices that hold it.

    A piece has the color that plan.png gives its coordinates.

    Args:
      path: PNG file to write.
      batch_size: examples of the batch.
      specs: of the inputs by name.
      pieces: of the same.
      axes: the mesh's, name to size; its devices are numbered with the last axis fastest.
      title: of the picture.
    """
    figure, panels = subplots(len(pieces), _COLUMNS, figsize=(11, 4.6 * len(pieces)))
    for row, (name, held) in zip(np.reshape(panels, (-1, _COLUMNS)), pieces.items(), strict=True):
        shape = (batch_size, *specs[name].shape)
        dims = (_EXAMPLES, *_dim_names(specs[name]))
        if len(shape) == 1:  # an example is one number: drawn as a row of them
            shape = (batch_size, 1)
            dims = (_EXAMPLES, name)
            held = {device: (*spans, (0, 1)) for device, spans in held.items()}
        for panel, (down, across) in zip(row, ((0, 1), (1, 2)), strict=True):
            if across < len(shape):
                _draw_view(panel, held, (down, across), axes)
                panel.set(xlim=(0, shape[across]), ylim=(shape[down], 0), xlabel=dims[across], ylabel=dims[down])
                panel.set_title(f"{name}: {dims[down]} x {dims[across]}")
                for axis in (panel.xaxis, panel.yaxis):
                    axis.get_major_locator().set_params(integer=True)
            else:
                panel.axis("off")
    figure.suptitle(title)
    save(figure, path)


def _dim_names(spec: ArraySpec) -> list[str]:
    names = spec.dims or ("",) * len(spec.shape)
    return [name or f"dim {number}" for number, name in enumerate(names, start=1)]


def _draw_view(panel: Axes, pieces: Pieces, dims: tuple[int, int], axes: Mapping[str, int]) -> None:
    """Draws two dims of an input's pieces, the first of them down."""
    held: dict[tuple[tuple[int, int], tuple[int, int]], list[int]] = {}
    for device, spans in pieces.items():
        held.setdefault((spans[dims[0]], spans[dims[1]]), []).append(device)
    for (rows, columns), devices in held.items():
        width = columns[1] - columns[0]
        height = rows[1] - rows[0]
        place = _shared_place(devices, axes) if len(held) > 1 else {}
        face = palette.of_part(axes, place)
        panel.add_patch(
            Rectangle((columns[0], rows[0]), width, height, facecolor=palette.as_hex(face), edgecolor="white", lw=2)
        )
        at = ", ".join(f"{axis} {number}" for axis, number in place.items())
        label = f"device{'s' if len(devices) > 1 else ''} {_numbers(devices)}" + (f"\n{at}" if at else "")
        middle = (columns[0] + width / 2, rows[0] + height / 2)
        panel.text(*middle, label, ha="center", va="center", fontsize=9, color=palette.ink_on(face))


def _shared_place(devices: Sequence[int], axes: Mapping[str, int]) -> dict[str, int]:
    """Returns the coordinates that devices have in common, axis to number, of axes that have several."""
    places = np.array(np.unravel_index(list(devices), tuple(axes.values())))
    same = {axis: row for axis, row in zip(axes, places, strict=True) if axes[axis] > 1 and len(set(row)) == 1}
    return {axis: int(row[0]) for axis, row in same.items()}


def _numbers(devices: Sequence[int]) -> str:
    """Returns numbers as `0, 2, 4, 6`, and those that follow each other as `0 to 7`."""
    first = min(devices)
    last = max(devices)
    if len(devices) > 2 and sorted(devices) == list(range(first, last + 1)):
        return f"{first} to {last}"
    return ", ".join(map(str, sorted(devices)))

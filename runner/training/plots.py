"""Pictures of a run: the curves of its metrics, and how a batch is sharded over the devices."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.patches import Rectangle
from matplotlib.ticker import MaxNLocator

from runner.data.base import Array, ArraySpec
from runner.report import palette
from runner.report.figures import log_axis, save, show_last_tenth, subplots
from runner.task.base import LOSS, Evaluation
from runner.training.lengths import RunLength

# The loss axis is logarithmic if the largest loss is more than so many times the smallest. Below that a linear axis
# shows the same, and is easier to read.
_LOG_FROM = 3.0

# Panels side by side: curves, or views of an input.
_COLUMNS = 2
_EXAMPLES = "example of the batch"

# Points that make a curve.
_CURVE = 2

# (start, stop) in one dim.
Span = tuple[int, int]

# Device number -> the span of its piece in each dim.
Pieces = Mapping[int, Sequence[Span]]

# (epoch or step, value)
Point = tuple[float, float]


def has_curves(train: Sequence[object], evaluations: Sequence[object]) -> bool:
    """Returns whether anything was logged often enough for a curve."""
    return max(len(train), len(evaluations)) >= _CURVE


def curves(
    path: Path,
    train: Sequence[tuple[int, Mapping[str, float]]],
    evaluations: Sequence[tuple[int, Evaluation]],
    length: RunLength,
    evaluated: str = "test",
    rising: Collection[str] = (),
) -> None:
    """Draws every metric by epoch or by step, for training steps and for evaluations.

    Args:
      path: PNG file to write.
      train: (step, means by name) of logged windows.
      evaluations: (step, metrics).
      length: of the run, which is shown by epochs or by steps.
      evaluated: name of the split that evaluations are on.
      rising: the metrics for which higher is better.
    """
    names = _metric_names(train, evaluations)
    rows = max(-(-len(names) // _COLUMNS), 1)
    columns = min(max(len(names), 1), _COLUMNS)
    figure, panels = subplots(rows, columns, figsize=(5.5 * columns, 4.2 * rows))
    # Steps per unit of the horizontal axis.
    unit = 1
    axis = "step"
    if length.by_epochs:
        unit = length.epoch
        axis = f"epoch (of {length.epoch:,} steps)"
    period_means = _by_period(train, length.period)
    evaluated_metrics = [(step, evaluation.metrics) for step, evaluation in evaluations]
    flat = np.ravel(np.asarray(panels, object))
    for axes, name in zip(flat, names, strict=False):
        steps = _points(train, name, unit)
        means = _points(period_means, name, unit)
        tests = _points(evaluated_metrics, name, unit)
        _draw_metric(axes, name, steps, means, tests, "epoch" if length.by_epochs else "period", evaluated)
        axes.set_xlabel(axis)
        show_last_tenth(axes, [value for _, value in (*steps, *means, *tests)], rises=name in rising)
    for axes in flat[len(names) :]:
        axes.axis("off")
    if names:
        figure.legend(*flat[0].get_legend_handles_labels(), loc="outside lower center", ncols=3, frameon=False)
    save(figure, path)


def learning_rates(path: Path, points: Sequence[tuple[int, float]], title: str) -> None:
    """Draws the learning rate by step.

    Args:
      path: PNG file to write.
      points: (steps done, rate) in order.
      title: of the picture.
    """
    figure, axes = subplots(1, 1, figsize=(7.0, 3.2))
    axes.plot(*zip(*points, strict=True), color=palette.TRAIN, lw=1.5)
    axes.set(xlabel="step", ylabel="learning rate", title=title)
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.25)
    save(figure, path)


def _points(rows: Iterable[tuple[int, Mapping[str, float]]], name: str, unit: int) -> list[Point]:
    """Returns the points of a metric's curve, from (step, values by name) with so many steps per unit of the axis."""
    points: list[Point] = []
    for step, values in rows:
        if name in values:
            points.append((step / unit, values[name]))
    return points


def _metric_names(
    train: Sequence[tuple[int, Mapping[str, float]]], evaluations: Sequence[tuple[int, Evaluation]]
) -> list[str]:
    """Returns the names of all metrics, those of training first."""
    names: dict[str, None] = {}
    if train:
        names |= dict.fromkeys(train[0][1])
    if evaluations:
        names |= dict.fromkeys(evaluations[0][1].metrics)
    return list(names)


def _draw_metric(
    axes: Axes,
    name: str,
    steps: Sequence[Point],
    means: Sequence[Point],
    tests: Sequence[Point],
    period: str,
    evaluated: str,
) -> None:
    """Draws one metric: a line of training steps, one of their means by epoch or period, and one of evaluations."""
    if steps:
        axes.plot(*zip(*steps, strict=True), color=palette.TRAIN_STEPS, lw=1, label="train, a few steps")
        axes.plot(*zip(*means, strict=True), color=palette.TRAIN, marker="o", label=f"train, mean of the {period}")
    if tests:
        label = f"{evaluated}, after the {period}"
        axes.plot(*zip(*tests, strict=True), color=palette.EVALUATED, marker="s", label=label)
    # Ticks at whole epochs, unless there are hardly any.
    last = max((place for place, _ in (*steps, *tests)), default=0)
    locator = axes.xaxis.get_major_locator()
    assert isinstance(locator, MaxNLocator)
    locator.set_params(integer=last >= 2)
    axes.set_title(name)
    axes.grid(alpha=0.25)
    values = [value for _, value in steps]
    if name == LOSS and values and 0 < _LOG_FROM * min(values) < max(values):
        log_axis(axes)


def _by_period(train: Sequence[tuple[int, Mapping[str, float]]], period: int) -> list[tuple[int, dict[str, float]]]:
    """Returns (last step, means of the steps by name) of each period; each step has the means of its window."""
    # End of a period -> steps, and sums of the metrics over these.
    sums: dict[int, Array] = {}
    done = 0
    for end, means in train:
        # A window may reach into the next period, and then counts in both with the steps that it has there.
        while done < end:
            period_end = (done // period + 1) * period
            steps = min(end, period_end) - done
            row = steps * np.array([1.0, *means.values()])
            sums[period_end] = sums.get(period_end, np.zeros(1 + len(means))) + row
            done += steps
    by_period: list[tuple[int, dict[str, float]]] = []
    for period_end, row in sums.items():
        means = (row[1:] / row[0]).tolist()
        # Every window has the same metrics. The last period may be shorter than the others.
        by_period.append((min(period_end, done), dict(zip(train[0][1], means, strict=True))))
    return by_period


def sharding(
    path: Path,
    batch_size: int,
    specs: Mapping[str, ArraySpec],
    pieces: Mapping[str, Pieces],
    axes: Mapping[str, int],
    title: str,
) -> None:
    """Draws how a batch of each input is sharded, each piece with the devices that have it.

    A piece has the color that plan.png gives its mesh coordinates.

    Args:
      path: PNG file to write.
      batch_size: examples of the batch.
      specs: of the inputs by name.
      pieces: of the inputs by name.
      axes: of the mesh, name -> size; its devices are numbered with the last axis fastest.
      title: of the picture.
    """
    figure, panels = subplots(len(pieces), _COLUMNS, figsize=(11, 4.6 * len(pieces)))
    rows = np.reshape(panels, (-1, _COLUMNS))
    for row, (name, input_pieces) in zip(rows, pieces.items(), strict=True):
        shape = (batch_size, *specs[name].shape)
        dims = (_EXAMPLES, *_dim_names(specs[name]))
        if len(shape) == 1:
            # An example is one number: the batch is drawn as a column of them.
            shape = (batch_size, 1)
            dims = (_EXAMPLES, name)
            input_pieces = {device: (*spans, (0, 1)) for device, spans in input_pieces.items()}
        # Two views of at most three dims: examples by the first dim, and the first dim by the second.
        for panel, (down, across) in zip(row, ((0, 1), (1, 2)), strict=True):
            if across >= len(shape):
                panel.axis("off")
                continue
            _draw_view(panel, input_pieces, (down, across), axes)
            panel.set(xlim=(0, shape[across]), ylim=(shape[down], 0), xlabel=dims[across], ylabel=dims[down])
            panel.set_title(f"{name}: {dims[down]} x {dims[across]}")
            for axis in (panel.xaxis, panel.yaxis):
                axis.get_major_locator().set_params(integer=True)
    figure.suptitle(title)
    save(figure, path)


def _dim_names(spec: ArraySpec) -> list[str]:
    names = spec.dims or ("",) * len(spec.shape)
    return [name or f"dim {number}" for number, name in enumerate(names, start=1)]


def _draw_view(panel: Axes, pieces: Pieces, dims: tuple[int, int], axes: Mapping[str, int]) -> None:
    """Draws two dims of an input's pieces, the first of them down."""
    down, across = dims
    # Rectangle -> the devices that have a piece there.
    rectangles: dict[tuple[Span, Span], list[int]] = {}
    for device, spans in pieces.items():
        rectangles.setdefault((spans[down], spans[across]), []).append(device)
    for (rows, columns), devices in rectangles.items():
        width = columns[1] - columns[0]
        height = rows[1] - rows[0]
        coordinates: dict[str, int] = {}
        if len(rectangles) > 1:
            coordinates = _shared_coordinates(devices, axes)
        face = palette.of_part(axes, coordinates)
        panel.add_patch(
            Rectangle((columns[0], rows[0]), width, height, facecolor=palette.as_hex(face), edgecolor="white", lw=2)
        )
        label = f"device {_numbers(devices)}"
        if len(devices) > 1:
            label = f"devices {_numbers(devices)}"
        if coordinates:
            label += "\n" + ", ".join(f"{axis} {number}" for axis, number in coordinates.items())
        panel.text(
            columns[0] + width / 2,
            rows[0] + height / 2,
            label,
            ha="center",
            va="center",
            fontsize=9,
            color=palette.ink_on(face),
        )


def _shared_coordinates(devices: Sequence[int], axes: Mapping[str, int]) -> dict[str, int]:
    """Returns the mesh coordinates that devices have in common, axis -> number, of axes with several devices."""
    # (axes, devices)
    coordinates = np.array(np.unravel_index(list(devices), tuple(axes.values())))
    shared: dict[str, int] = {}
    for axis, row in zip(axes, coordinates, strict=True):
        if axes[axis] > 1 and len(set(row)) == 1:
            shared[axis] = int(row[0])
    return shared


def _numbers(devices: Sequence[int]) -> str:
    """Returns numbers as `0, 2, 4, 6`, and consecutive ones as `0 to 7`."""
    first = min(devices)
    last = max(devices)
    if len(devices) > 2 and sorted(devices) == list(range(first, last + 1)):
        return f"{first} to {last}"
    return ", ".join(map(str, sorted(devices)))

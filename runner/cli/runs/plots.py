"""Pictures of several runs: their curves, and a metric by a key."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from runner import figures
from runner.cli.runs.records import (
    RunRecord,
    higher_is_better,
    history,
)
from runner.cli.runs.sheet import Line
from runner.config.names import varied_name

if TYPE_CHECKING:
    from mlflow import MlflowClient

_BATCH_SIZE = "dataset.batch_size"


def curves(path: Path, client: MlflowClient, runs: Mapping[str, RunRecord], metrics: Sequence[str]) -> bool:
    """Draws a panel per metric with the curves of runs: by step, or by examples if batch sizes differ.

    Steps of different sizes don't compare.

    Args:
      path: PNG file to write.
      client: client of the store.
      runs: label to record, the best first; those after the seventh are gray, for want of colors.
      metrics: names.

    Returns:
      Whether any metric has two points, which a curve needs; otherwise there is no file.
    """
    sizes = {label: record.params.get(_BATCH_SIZE, "") for label, record in runs.items()}
    # A run without a recorded batch size can't be converted, so then all curves are by step.
    by_examples = len(set(sizes.values())) > 1 and all(size.isdecimal() for size in sizes.values())
    panels: dict[str, list[figures.Curve]] = {}
    for metric in metrics:
        drawn = []
        for index, (label, record) in enumerate(runs.items()):
            examples_per_step = int(sizes[label]) if by_examples else 1
            points = [(step * examples_per_step, value) for step, value in history(client, record.run_id, metric)]
            if len(points) < 2:
                continue
            if index < len(figures.SERIES):
                curve = figures.Curve(label, points, figures.SERIES[index], dashed=index % 2 == 1)
            else:
                # The legend has one entry for all of them.
                others = f"{len(runs) - len(figures.SERIES)} others"
                curve = figures.Curve(others, points, figures.OTHER, ",", width=0.8)
            drawn.append(curve)
        if drawn:
            panels[metric] = drawn
    if not panels:
        return False
    rising = [metric for metric in panels if higher_is_better(metric, list(runs.values()))]
    figures.curves(path, panels, "training examples" if by_examples else "training steps", rising=rising)
    return True


def against(path: Path, metric: str, key: str, lines: Sequence[Line], *, related: bool = True) -> None:
    """Draws a metric by one key; numeric values of lines that share the other keys are joined.

    Args:
      path: PNG file to write.
      metric: its name.
      key: one of the lines' keys.
      lines: those without the metric are left out.
      related: false for the trials of a search, which are points whatever keys they happen to share.
    """
    series: dict[str, list[tuple[str, float, float]]] = {}
    records: list[RunRecord] = []
    for line in lines:
        stat = line.metrics.get(metric)
        if stat is not None and math.isfinite(stat.mean) and key in line.values:
            others = varied_name({name: value for name, value in line.values.items() if name != key})
            series.setdefault(others, []).append((line.values[key], stat.mean, stat.deviation))
        records += line.records
    # More series than colors are points without a name, as those of a search.
    related = related and len(series) <= len(figures.SERIES)
    if not related:
        series = {"": [point for points in series.values() for point in points]}
    rises = higher_is_better(metric, records)
    figures.against(path, metric, key, series, rises=rises, joined=related)

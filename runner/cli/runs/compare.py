"""Runs side by side: the best first, with the keys in which they differ."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from runner import figures
from runner.cli import tables
from runner.cli.runs.records import RunRecord, higher_is_better, history, judged_by, result_columns
from runner.cluster.membership import short_keys, short_value, varied_name
from runner.host import folders
from runner.task import metrics
from runner.tracking.store import Store

_BATCH_SIZE = "dataset.batch_size"
_GROUPS = ("engine", "mesh", "layout", "model", "optimizer", "dataset", "task")
# Params that differ between runs of the same experiment.
_NOT_COMPARED = ("tracking.", "sweep.", "trainer.progress", "cluster.restart")


def compare(records: Sequence[RunRecord], store: Store, out: Path | None) -> None:
    """Prints the table of runs; a folder `out` gets `table.csv` and `curves.png`.

    Raises:
      ConfigError: the folder has files that are not ours.
    """
    metric = judged_by(records)
    ranked = best_first(records, metric)
    keys = varying(ranked)
    columns = table_of(ranked, keys, metric)
    heading = f"{len(ranked)} runs"
    if not keys:
        heading += ", all with the same config"
    first_number = list(columns).index("status") + 1
    tables.show(list(columns), list(zip(*columns.values(), strict=True)), heading, range(first_number, len(columns)))
    if out is None:
        return
    folders.claim("out", out)
    names = list(dict.fromkeys((metric, f"{metrics.TRAIN}loss")))
    written = [tables.write(out, columns).name]
    if draw_curves(out / "curves.png", store, ranked, names):
        written.append("curves.png")
    print(f"written: {', '.join(written)} in {out}")


def best_first(records: Sequence[RunRecord], metric: str) -> list[RunRecord]:
    """Returns runs sorted by a metric; those without it, or with NaN, are last."""
    sign = -1.0 if higher_is_better(metric, records) else 1.0

    def rank(record: RunRecord) -> tuple[bool, float]:
        value = record.metrics.get(metric, math.nan)
        return (True, 0.0) if math.isnan(value) else (False, sign * value)

    return sorted(records, key=rank)


def table_of(records: Sequence[RunRecord], keys: Sequence[str], metric: str) -> dict[str, list[str]]:
    """Returns the columns of a comparison by title, with one cell per run; results are after the status."""
    columns = {"run": [record.run_id[:8] for record in records]}
    for key, title in short_keys(keys).items():
        columns[title] = [short_value(record.params.get(key, "")) for record in records]
    columns["status"] = [record.status for record in records]
    return columns | result_columns(records, metric, keys)


def varying(records: Sequence[RunRecord]) -> list[str]:
    """Returns the keys in which the runs differ.

    If the runs use different options of a group (optimizer=adam, optimizer=sgd), the group is listed in place of those
    of its keys whose values follow from the option. The param of a group is its option, and that of `mesh` its axes.
    """
    groups = [group for group in _GROUPS if len({record.params.get(group, "") for record in records}) > 1]
    keys = []
    for key in sorted({key for record in records for key in record.params}):
        values = {record.params.get(key, "") for record in records}
        if key.startswith(_NOT_COMPARED) or len(values) < 2:
            continue
        group = key.partition(".")[0]
        options = {record.params.get(group, "") for record in records}
        pairs = {(record.params.get(group, ""), record.params.get(key, "")) for record in records}
        follows_group = group in groups and len(pairs) == len(options)
        if not follows_group:
            keys.append(key)
    return groups + keys


def draw_curves(path: Path, store: Store, runs: Sequence[RunRecord], names: Sequence[str]) -> bool:
    """Draws a panel per metric with the curves of runs: by step, or by examples if batch sizes differ.

    Steps of different sizes don't compare. Runs come with the best first; those after the seventh are gray for want of
    colors. Returns whether any metric has two points, which a curve needs; otherwise there is no file.
    """
    sizes = [record.params.get(_BATCH_SIZE, "") for record in runs]
    # A run without a recorded batch size can't be converted, so then all curves are by step.
    by_examples = len(set(sizes)) > 1 and all(size.isdecimal() for size in sizes)
    keys = varying(runs)
    panels: dict[str, list[figures.Curve]] = {}
    for metric in names:
        for index, record in enumerate(runs):
            examples_per_step = int(sizes[index]) if by_examples else 1
            points = [(step * examples_per_step, value) for step, value in history(store, record.run_id, metric)]
            if len(points) < 2:
                continue
            if index < len(figures.SERIES):
                label = varied_name({key: record.params.get(key, "") for key in keys}) or record.name
                curve = figures.Curve(label, points, figures.SERIES[index], dashed=index % 2 == 1)
            else:
                # The legend has one entry for all of them.
                others = f"{len(runs) - len(figures.SERIES)} others"
                curve = figures.Curve(others, points, figures.OTHER, ",", width=0.8)
            panels.setdefault(metric, []).append(curve)
    if not panels:
        return False
    figures.curves(path, panels, "training examples" if by_examples else "training steps")
    return True

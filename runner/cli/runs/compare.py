"""Runs side by side: one row per config, the best first, with the keys in which they differ."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from runner import figures
from runner.cli import tables
from runner.cli.runs.records import RunRecord, higher_is_better, history, judged_by, shown_metrics, values_in
from runner.cluster.membership import short_keys, short_value, varied_name
from runner.host import folders
from runner.task import metrics
from runner.tracking.store import Store

_SEED = "trainer.seed"
_BATCH_SIZE = "dataset.batch_size"
_GROUPS = ("engine", "mesh", "layout", "model", "optimizer", "dataset", "task")
# Params that differ between runs of the same experiment.
_NOT_COMPARED = ("tracking.", "sweep.", "trainer.progress", "cluster.restart")
Groups = Mapping[tuple[str, ...], Sequence[RunRecord]]


def compare(records: Sequence[RunRecord], store: Store, out: Path | None) -> None:
    """Prints the table of runs; a folder `out` gets `curves.png`.

    Raises:
      ConfigError: the folder has files that are not ours.
    """
    metric = judged_by(records)
    keys, groups = grouped(records, metric)
    table = table_of(keys, groups, metric)
    heading = f"{len(records)} runs, {len(groups)} lines"
    if not varying(records):
        heading += ", all with the same config"
    tables.show(table, heading)
    if out is None:
        return
    folders.claim("out", out)
    drawn: dict[str, RunRecord] = {}
    for values, members in groups.items():
        drawn[varied_name(dict(zip(keys, values, strict=True))) or members[-1].name] = members[-1]
    if draw_curves(out / "curves.png", store, drawn, list(dict.fromkeys((metric, f"{metrics.TRAIN}loss")))):
        print(f"written: curves.png in {out}")


def grouped(records: Sequence[RunRecord], metric: str) -> tuple[list[str], Groups]:
    """Returns the keys in which runs differ, and the runs by their values, sorted by a metric.

    Runs that differ only in the seed are together. Those without the metric, or with NaN, are last.
    """
    keys = [key for key in varying(records) if key != _SEED]
    groups: dict[tuple[str, ...], list[RunRecord]] = {}
    for record in records:
        groups.setdefault(tuple(record.params.get(key, "") for key in keys), []).append(record)
    sign = -1.0 if higher_is_better(metric, records) else 1.0

    def rank(values: tuple[str, ...]) -> tuple[bool, float]:
        value = tables.mean(values_in(groups[values], metric))
        return (True, 0.0) if math.isnan(value) else (False, sign * value)

    return keys, {values: groups[values] for values in sorted(groups, key=rank)}


def table_of(keys: Sequence[str], groups: Groups, metric: str) -> tables.Table:
    """Returns the table of a comparison, `metric` in the first column of results."""
    records = [record for members in groups.values() for record in members]
    shown = shown_metrics(records, metric)
    statuses = [_status(members) for members in groups.values()]
    has_status = len(set(statuses)) > 1
    is_folded = len(records) > len(groups)
    titles = ["run", *short_keys(list(keys)).values(), *["status"] * has_status]
    first_number = len(titles)
    titles += [*["runs"] * is_folded, *(tables.title(name, shown) for name in shown)]
    rows = []
    for (values, members), status in zip(groups.items(), statuses, strict=True):
        row = [members[-1].run_id[:8], *map(short_value, values), *[status] * has_status]
        row += [str(len(members))] * is_folded
        row += [tables.cell(values_in(members, name)) for name in shown]
        rows.append(tuple(row))
    return tables.Table(tuple(titles), tuple(rows), frozenset(range(first_number, len(titles))))


def _status(members: Sequence[RunRecord]) -> str:
    """Returns the status of runs, such as `FINISHED` or `FINISHED 2, FAILED 1`."""
    counts = Counter(record.status for record in members)
    if len(counts) == 1:
        return next(iter(counts))
    return ", ".join(f"{status} {count}" for status, count in counts.items())


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


def draw_curves(path: Path, store: Store, runs: Mapping[str, RunRecord], names: Sequence[str]) -> bool:
    """Draws a panel per metric with the curves of runs: by step, or by examples if batch sizes differ.

    Steps of different sizes don't compare. Runs come with labels, the best first; those after the seventh are gray for
    want of colors. Returns whether any metric has two points, which a curve needs; otherwise there is no file.
    """
    sizes = {label: record.params.get(_BATCH_SIZE, "") for label, record in runs.items()}
    # A run without a recorded batch size can't be converted, so then all curves are by step.
    by_examples = len(set(sizes.values())) > 1 and all(size.isdecimal() for size in sizes.values())
    panels: dict[str, list[figures.Curve]] = {}
    for metric in names:
        for index, (label, record) in enumerate(runs.items()):
            examples_per_step = int(sizes[label]) if by_examples else 1
            points = [(step * examples_per_step, value) for step, value in history(store, record.run_id, metric)]
            if len(points) < 2:
                continue
            if index < len(figures.SERIES):
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

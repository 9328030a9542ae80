"""Output of `runner.compare`: a table with plots, or two runs' differences."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from mlflow import MlflowClient

from runner.compare import diff as differences
from runner.compare import metrics, plots, points, render
from runner.compare.lines import Line, keys_of, make_lines, sort_lines, varying
from runner.compare.records import Filter, RunRecord, from_run, load
from runner.config.names import short_keys, varied_name
from runner.config.schema import TrackingConfig
from runner.errors import EXIT_DONE, EXIT_FAILED
from runner.host import folders
from runner.tracking.paging import experiment_ids
from runner.tracking.store import Store
from runner.tracking.sweeps import find, open_tracking


def compare(options: argparse.Namespace) -> int:
    """Prints the table of the runs that match the filters.

    See `runner.compare.command`.

    Returns:
      The process's exit code.

    Raises:
      ConfigError: a filter names something that does not exist.
      TrackingError: the store can't be used.
    """
    store = open_tracking(TrackingConfig(uri=options.uri))
    records = _selected(store, options)
    if not records:
        print("no runs match the filters", file=sys.stderr)
        return EXIT_FAILED
    lines = make_lines(records, fold=not options.no_fold)
    judged_by = metrics.judged_by(records)
    sorted_by = options.sort or judged_by
    # A table that is sorted by a metric also begins with it and plots it; a key can't be plotted so.
    metric = judged_by
    if any(sorted_by in line.metrics for line in lines):
        metric = sorted_by
    lines = sort_lines(lines, sorted_by, descending=_descending(sorted_by, lines, records) != options.reverse)
    sheet = render.sheet_of(
        lines,
        options.show or metrics.columns(records, metric),
        lead={"run": [line.records[-1].run_id[:8] for line in lines]},
        extra=_status_column(lines),
    )
    console = render.console()
    console.print(render.rich_table(sheet, _title(records, lines), console.width))
    if options.points:
        print(f"written: {points.write(store.client, records, options.points):,} points in {options.points}")
    if options.out:
        folders.claim("--out", options.out)
        (options.out / "table.csv").write_text(render.to_csv(sheet))
        (options.out / "table.md").write_text(render.to_markdown(sheet))
        files = ["table.csv", "table.md", *_plots(store.client, options.out, metric, lines)]
        print(f"written: {', '.join(files)} in {options.out}")
    return EXIT_DONE


def _selected(store: Store, options: argparse.Namespace) -> list[RunRecord]:
    """Returns the runs that the options select."""
    wanted = Filter(options.experiment, None, options.tag, options.metric, options.status)
    if options.sweep:
        ids = experiment_ids(store.client)
        # `load` reports an experiment that does not exist.
        experiments = [ids[name] for name in options.experiment if name in ids]
        parent = find(store, options.sweep, experiments)
        wanted = replace(wanted, parent_run_id=parent.info.run_id)
    records = load(store.client, wanted)
    if not options.run:
        return records
    run_ids = set()
    for which in options.run:
        run = differences.find_run(store.client, which, "--run ")
        run_ids.add(run.info.run_id)
    return [record for record in records if record.run_id in run_ids]


def _status_column(lines: Sequence[Line]) -> dict[str, list[str]]:
    """Returns the column of statuses; none if all are equal."""
    statuses = [line.status for line in lines]
    if len(set(statuses)) == 1:
        return {}
    return {"status": statuses}


def _descending(by: str, lines: Sequence[Line], records: Sequence[RunRecord]) -> bool:
    """Returns whether the largest value is first.

    That is so for a metric, unless lower is better. Keys are ascending.
    """
    is_key = any(by in line.values for line in lines)
    return not is_key and not metrics.lower_is_better(by, records)


def _title(records: Sequence[RunRecord], lines: Sequence[Line]) -> str:
    title = f"{len(records)} runs, {len(lines)} lines"
    if not varying(records):
        title += ", all with the same config"
    return title


def _plots(client: MlflowClient, folder: Path, metric: str, lines: Sequence[Line]) -> list[str]:
    """Draws the plots of a comparison; returns the names of the files."""
    keys = keys_of(lines)
    prefix = _file_name(metric)
    files = []
    runs = {_label(line): line.records[-1] for line in lines}
    if plots.curves(folder / "curves.png", client, runs, list(dict.fromkeys((metric, "train/loss")))):
        files.append("curves.png")
    for key, short_key in short_keys(keys).items():
        files.append(f"{prefix}_by_{short_key}.png")
        plots.against(folder / files[-1], metric, key, lines)
    return files


def _file_name(metric: str) -> str:
    return metric.replace("/", "_")


def _label(line: Line) -> str:
    return varied_name(line.values) or line.records[-1].name


def diff(options: argparse.Namespace) -> int:
    """Prints how two runs differ; see `runner.compare.command`.

    Returns:
      The process's exit code.

    Raises:
      ConfigError: there is no such run.
      TrackingError: the store can't be used.
    """
    store = open_tracking(TrackingConfig(uri=options.uri))
    first_id, second_id = options.diff
    first = from_run(differences.find_run(store.client, first_id))
    second = from_run(differences.find_run(store.client, second_id))
    sheets = {
        "config": differences.config_diff(first, second),
        "results": differences.metric_diff(first, second),
        "plan": differences.plan_diff(store.client, first, second),
    }
    console = render.console()
    for name, sheet in sheets.items():
        if sheet is None:
            print(f"{name}: not recorded for both runs")
        elif not sheet.rows:
            print(f"{name}: equal")
        else:
            console.print(render.rich_table(sheet, f"{name}: {len(sheet.rows)} differ", console.width))
    if options.out:
        folders.claim("--out", options.out)
        parts = []
        for sheet in sheets.values():
            if sheet is not None and sheet.rows:
                parts.append(render.to_markdown(sheet))
        (options.out / "diff.md").write_text("\n".join(parts))
        print(f"written: diff.md in {options.out}")
    return EXIT_DONE

"""What `runner.compare` prints and writes: the table of runs with its plots, or the differences of two."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from mlflow import MlflowClient

from runner.compare import curves, metrics, plots, points, render
from runner.compare import diff as differences
from runner.compare.lines import Line, make_lines, sort_lines, varying
from runner.compare.records import Filter, RunRecord, from_run, load
from runner.config.names import short_keys, varied_name
from runner.config.schema import TrackingConfig
from runner.errors import EXIT_DONE, EXIT_FAILED
from runner.host import folders
from runner.tracking.store import Store
from runner.tracking.sweeps import find, open_tracking


def _open(options: argparse.Namespace) -> Store:
    return open_tracking(TrackingConfig(uri=options.uri))


def compare(options: argparse.Namespace) -> int:
    """Prints the table of the runs that pass the filter; see `runner.compare.command`.

    Returns:
      The process's exit code.

    Raises:
      ConfigError: a filter names what is not there.
      TrackingError: the store can't be used.
    """
    store = _open(options)
    wanted = Filter(options.experiment, None, options.tag, options.metric, options.status)
    if options.sweep:
        names = {one.name: one.experiment_id for one in store.client.search_experiments()}
        parent = find(store, options.sweep, [names[name] for name in options.experiment if name in names])
        wanted = replace(wanted, parent_run_id=parent.info.run_id)
    records = load(store.client, wanted)
    if options.run:
        named = {differences.find_run(store.client, one, "--run ").info.run_id for one in options.run}
        records = [record for record in records if record.run_id in named]
    if not records:
        print("no run passes the filter", file=sys.stderr)
        return EXIT_FAILED
    lines = make_lines(records, fold=not options.no_fold)
    usual = metrics.judged_by(records)
    by = options.sort or usual
    metric = by if any(by in line.metrics for line in lines) else usual
    lines = sort_lines(lines, by, descending=_descending(by, lines, records) != options.reverse)
    extra = {"status": [line.status for line in lines]} if len({line.status for line in lines}) > 1 else {}
    newest = {"run": [line.records[-1].run_id[:8] for line in lines]}
    sheet = render.sheet_of(lines, options.show or metrics.columns(records, metric), lead=newest, extra=extra)
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


def _descending(by: str, lines: Sequence[Line], records: Sequence[RunRecord]) -> bool:
    """Best first: the largest of a metric unless less of it is better; keys rise."""
    return not any(by in line.values for line in lines) and not metrics.lower_is_better(by, records)


def _title(records: Sequence[RunRecord], lines: Sequence[Line]) -> str:
    same = "" if varying(records) else ", all of one config"
    return f"{len(records)} runs, {len(lines)} lines{same}"


def _plots(client: MlflowClient, folder: Path, metric: str, lines: Sequence[Line]) -> list[str]:
    keys = list(dict.fromkeys(key for line in lines for key in line.values))
    word = metric.replace("/", "_")
    written = []
    runs = {_label(line): line.records[-1] for line in lines}
    colors = plots.looks(list(runs))
    for name in dict.fromkeys((metric, "train/loss")):
        found = curves.read(client, runs, name)
        if found.points:
            written.append(f"{name.replace('/', '_')}_curves.png")
            plots.curves(folder / written[-1], found, colors)
    for key, short in short_keys(keys).items():
        written.append(f"{word}_by_{short}.png")
        plots.against(folder / written[-1], metric, key, lines)
    if len(keys) == 2:
        written.append(f"{word}_heat.png")
        plots.heat(folder / written[-1], metric, (keys[0], keys[1]), lines)
    return written


def _label(line: Line) -> str:
    return varied_name(line.values) or line.records[-1].name


def diff(options: argparse.Namespace) -> int:
    """Prints in what two runs differ; see `runner.compare.command`.

    Returns:
      The process's exit code.

    Raises:
      ConfigError: there is no such run.
      TrackingError: the store can't be used.
    """
    store = _open(options)
    first, second = (from_run(differences.find_run(store.client, one)) for one in options.diff)
    sheets = {
        "config": differences.config_diff(first, second),
        "results": differences.metric_diff(first, second),
        "plan": differences.plan_diff(store.client, first, second),
    }
    console = render.console()
    for name, sheet in sheets.items():
        if sheet is None:
            print("plan: not both runs have one")
        elif not sheet.rows:
            print(f"{name}: equal")
        else:
            console.print(render.rich_table(sheet, f"{name}: {len(sheet.rows)} differ", console.width))
    if options.out:
        folders.claim("--out", options.out)
        parts = [render.to_markdown(sheet) for sheet in sheets.values() if sheet is not None and sheet.rows]
        (options.out / "diff.md").write_text("\n".join(parts))
        print(f"written: diff.md in {options.out}")
    return EXIT_DONE

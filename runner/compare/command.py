"""Compares recorded runs: a table, plots, and the differences of two runs."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from runner.cli.app import EXIT_DONE, EXIT_FAILED, EXIT_REFUSED
from runner.compare.lines import Line, lower_is_better, make_lines, sort_lines, varying
from runner.compare.records import Filter, RunRecord, from_run, history, load
from runner.config.errors import ConfigError, TrackingError
from runner.config.schema import TrackingConfig
from runner.host import folders
from runner.sweep.jobs import short_keys, varied_name

_METRICS = ["eval/accuracy", "eval/loss", "train/loss", "throughput/examples_per_second", "throughput/step_ms"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Compares what the command line asks for.

    Args:
      arguments: null: the process's own.

    Returns:
      The process's exit code: 0 done, 1 the store failed, 2 the command line was refused.
    """
    options = _parser().parse_args(arguments)
    try:
        if options.out:
            folders.check("--out", options.out.absolute())
        return _diff(options) if options.diff else _compare(options)
    except ConfigError as error:
        print(f"error: {error}", file=sys.stderr)
        return EXIT_REFUSED
    except TrackingError as error:
        print(f"error: {error}", file=sys.stderr)
        return EXIT_FAILED


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m runner.compare",
        description="Compares recorded runs: what they differ in as columns, results beside it, and plots.",
        epilog="python -m runner.compare --sweep latest --out outputs/compare",
    )
    parser.add_argument("--experiment", action="append", default=[], help="only runs of this experiment; repeatable")
    parser.add_argument("--sweep", help="only jobs of this sweep: its run id, its name, or latest")
    parser.add_argument("--tag", action="append", default=[], metavar="KEY[=VALUE]", help="as runner.mesh=batch8")
    parser.add_argument("--metric", action="append", default=[], metavar="TEST", help="as 'eval/accuracy>0.9'")
    parser.add_argument("--status", action="append", default=[], help="as FINISHED; repeatable")
    parser.add_argument("--show", action="append", default=[], metavar="METRIC", help="columns, in place of the usual")
    parser.add_argument("--sort", default="eval/accuracy", help="a metric or a column's key (eval/accuracy)")
    parser.add_argument("--reverse", action="store_true", help="worst first")
    parser.add_argument("--no-fold", action="store_true", help="each seed on a line of its own")
    parser.add_argument("--out", type=Path, help="writes table.csv, table.md and the plots into this folder")
    parser.add_argument("--diff", nargs=2, metavar=("RUN", "RUN"), help="two runs' configs, results and plans")
    parser.add_argument("--uri", help="tracking URI; else $MLFLOW_TRACKING_URI, else outputs/mlflow.db")
    return parser


def _open(options: argparse.Namespace) -> Any:
    from runner.sweep.parent import open_tracking

    return open_tracking(TrackingConfig(uri=options.uri))


def _compare(options: argparse.Namespace) -> int:
    from runner.compare import render

    store = _open(options)
    wanted = Filter(options.experiment, None, options.tag, options.metric, options.status)
    if options.sweep:
        from runner.sweep.parent import find

        names = {one.name: one.experiment_id for one in store.client.search_experiments()}
        parent = find(store, options.sweep, [names[name] for name in options.experiment if name in names])
        wanted = replace(wanted, parent_run_id=parent.info.run_id)
    records = load(store.client, wanted)
    if not records:
        print("no run passes the filter", file=sys.stderr)
        return EXIT_FAILED
    lines = make_lines(records, fold=not options.no_fold)
    metric = options.sort if any(options.sort in line.metrics for line in lines) else "eval/accuracy"
    lines = sort_lines(lines, options.sort, descending=_descending(options, lines))
    shown = options.show or list(dict.fromkeys(([metric] if metric else []) + _METRICS))
    extra = {"status": [line.status for line in lines]} if len({line.status for line in lines}) > 1 else {}
    newest = {"run": [line.records[-1].run_id[:8] for line in lines]}
    sheet = render.sheet_of(lines, shown, lead=newest, extra=extra)
    render.console().print(render.rich_table(sheet, _title(records, lines)))
    if options.out:
        folders.claim("--out", options.out)
        (options.out / "table.csv").write_text(render.to_csv(sheet))
        (options.out / "table.md").write_text(render.to_markdown(sheet))
        files = ["table.csv", "table.md", *_plots(store.client, options.out, metric, lines)]
        print(f"written: {', '.join(files)} in {options.out}")
    return EXIT_DONE


def _descending(options: argparse.Namespace, lines: Sequence[Line]) -> bool:
    """Best first: the largest of a metric unless less of it is better; keys rise."""
    is_key = any(options.sort in line.values for line in lines)
    return bool((not is_key and not lower_is_better(options.sort)) != options.reverse)


def _title(records: Sequence[RunRecord], lines: Sequence[Line]) -> str:
    same = "" if varying(records) else ", all of one config"
    return f"{len(records)} runs, {len(lines)} lines{same}"


def _plots(client: Any, folder: Path, metric: str, lines: Sequence[Line]) -> list[str]:
    from runner.compare import plots

    keys = list(dict.fromkeys(key for line in lines for key in line.values))
    word, written = metric.replace("/", "_"), []
    for name in dict.fromkeys((metric, "train/loss")):
        found = {_label(line): history(client, line.records[-1].run_id, name) for line in lines}
        if any(found.values()):
            written.append(f"{name.replace('/', '_')}_curves.png")
            plots.curves(folder / written[-1], name, {label: points for label, points in found.items() if points})
    for key, short in short_keys(keys).items():
        written.append(f"{word}_by_{short}.png")
        plots.against(folder / written[-1], metric, key, lines)
    if len(keys) == 2:
        written.append(f"{word}_heat.png")
        plots.heat(folder / written[-1], metric, (keys[0], keys[1]), lines)
    return written


def _label(line: Line) -> str:
    return varied_name(line.values) or line.records[-1].name


def _diff(options: argparse.Namespace) -> int:
    from runner.compare import diff, render

    store = _open(options)
    first, second = (from_run(diff.find_run(store.client, one)) for one in options.diff)
    sheets = {
        "config": diff.config_diff(first, second),
        "results": diff.metric_diff(first, second),
        "plan": diff.plan_diff(store.client, first, second),
    }
    for name, sheet in sheets.items():
        if sheet is None:
            print("plan: not both runs have one")
        elif not sheet.rows:
            print(f"{name}: equal")
        else:
            render.console().print(render.rich_table(sheet, f"{name}: {len(sheet.rows)} differ"))
    if options.out:
        folders.claim("--out", options.out)
        parts = [render.to_markdown(sheet) for sheet in sheets.values() if sheet is not None and sheet.rows]
        (options.out / "diff.md").write_text("\n".join(parts))
        print(f"written: diff.md in {options.out}")
    return EXIT_DONE

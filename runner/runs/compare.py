"""Recorded runs side by side: one table of what differs, and one figure of their curves."""

from __future__ import annotations

import sys
from collections.abc import Collection, Sequence
from pathlib import Path

from runner.compare import metrics, plots, render
from runner.compare.lines import make_lines, sort_lines, varying
from runner.compare.records import find_run, load
from runner.config.names import varied_name
from runner.config.schema import TrackingConfig
from runner.errors import EXIT_DONE, EXIT_FAILED
from runner.host import folders
from runner.tracking.sweeps import find, open_tracking


def compare(
    uri: str | None,
    runs: Sequence[str],
    sweep: str | None,
    statuses: Collection[str],
    last: int,
    out: Path | None,
) -> int:
    """Prints the table of the runs that match, the best first; the keys in which they differ are its columns.

    Args:
      uri: tracking URI; None: the default.
      runs: ids or their starts, names, or latest; none: all.
      sweep: only jobs of this sweep: its run id, its name, or latest.
      statuses: of the runs; none: any.
      last: the newest so many, without runs and sweep; 0: all.
      out: a folder that gets `table.csv` and `curves.png`.

    Returns:
      The process's exit code.

    Raises:
      ConfigError: there is no such run or sweep.
      TrackingError: the store can't be used.
    """
    store = open_tracking(TrackingConfig(uri=uri))
    parent = find(store, sweep, []).info.run_id if sweep else None
    chosen = {find_run(store.client, run).info.run_id for run in runs}
    records = []
    for record in load(store.client, parent):
        if (not chosen or record.run_id in chosen) and (not statuses or record.status in statuses):
            records.append(record)
    if not (runs or sweep):
        records = records[-last:]
    if not records:
        print("no runs match", file=sys.stderr)
        return EXIT_FAILED
    metric = metrics.judged_by(records)
    lines = sort_lines(make_lines(records), metric, descending=not metrics.lower_is_better(metric, records))
    columns = {"run": [line.records[-1].run_id[:8] for line in lines]}
    statuses_of_lines = [line.status for line in lines]
    extra = {"status": statuses_of_lines} if len(set(statuses_of_lines)) > 1 else {}
    sheet = render.sheet_of(lines, metrics.columns(records, metric), lead=columns, extra=extra)
    title = f"{len(records)} runs, {len(lines)} lines"
    if not varying(records):
        title += ", all with the same config"
    console = render.console()
    console.print(render.rich_table(sheet, title, console.width))
    if out is not None:
        folders.claim("out", out)
        (out / "table.csv").write_text(render.to_csv(sheet))
        written = "table.csv"
        drawn = {varied_name(line.values) or line.records[-1].name: line.records[-1] for line in lines}
        if plots.curves(out / "curves.png", store.client, drawn, list(dict.fromkeys((metric, "train/loss")))):
            written += ", curves.png"
        print(f"written: {written} in {out}")
    return EXIT_DONE

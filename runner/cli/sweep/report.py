"""Report of a sweep: the table, a picture, the best job, and the parent run with its final status."""

from __future__ import annotations

import math
import shlex
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from runner import figures
from runner.checkpoint.arguments import KEYS, key_of
from runner.cli import tables
from runner.cli.runs.records import VERDICT_TAG, RunRecord, from_run, result_columns, results_of, verdict_of
from runner.cli.sweep.sweep import Sweep, Values, values_of
from runner.cluster.jobs import GOOD, Job, Outcome, jobs_text
from runner.cluster.membership import short_keys, short_value, varied_name, varied_tags
from runner.host.outputs import spared
from runner.host.signals import interruption
from runner.task import metrics
from runner.tracking.base import Status
from runner.tracking.location import ui_lines
from runner.tracking.mlflow_setup import reason, warn

# A resumed sweep runs these again: they may end well this time. A refused job would end as before.
_RESUMABLE = {"killed", "failed", "not run"}
Draw = Callable[[Path], list[Path]]


@dataclass(frozen=True)
class Entry:
    """A job with its outcome, and the record of its run, which is empty if there is none."""

    job: Job
    outcome: Outcome
    record: RunRecord

    def value(self, metric: str) -> float:
        """Returns a metric of a job that passed; NaN where it has none."""
        if self.outcome.status not in ("passed", "skipped"):
            return math.nan
        return self.record.metrics.get(metric, math.nan)


def finish(sweep: Sweep, error: BaseException | None, draw: Draw | None) -> bool:
    """Ends a sweep: prints, writes and records its report; returns whether every job passed.

    Args:
      sweep: its jobs have ended, or never began.
      error: what ended the sweep early.
      draw: draws the pictures of a search into a folder and returns their paths; None: the sweep is a grid.
    """
    entries = _entries(sweep)
    statuses = [entry.outcome.status for entry in entries]
    all_good = error is None and set(statuses) <= GOOD
    metric = sweep.settings.group.metric
    best = best_of(entries, metric, maximize=sweep.settings.group.direction == metrics.MAXIMIZE)
    table = table_of(entries, metric)
    files: list[Path] = []
    counts = ", ".join(f"{count} {status}" for status, count in Counter(statuses).items())
    result = f"{jobs_text(len(entries))}: {counts}"
    if entries:
        files = _write(sweep, entries, table, draw)
        rows = list(zip(*table.values(), strict=True))
        numeric = range(list(table).index("seconds") + 1, len(table))
        best_row = None if best is None else entries.index(best)
        tables.show(list(table), rows, sweep.settings.name, numeric, best_row)
        for entry in entries:
            if entry.outcome.note and entry.outcome.status != "skipped":
                print(f"{entry.job}: {entry.outcome.status}: {entry.outcome.note}")
        print(result, flush=True)
    if best is not None:
        print(f"best: job {best.job.number}, {metric} {best.value(metric):.4g}. To rerun it:")
        print(f"  {_command(sweep, best.job)}", flush=True)
    if sweep.parent is None:
        if files:
            print(f"table and plots: {sweep.settings.folder}")
        return all_good
    status: Status = "FINISHED" if all_good else "FAILED"
    if interruption(error):
        status = "KILLED"
    tags = {"runner.sweep.result": result}
    best_metrics: dict[str, float] = {}
    if best is not None:
        tags |= {"runner.sweep.best": best.job.name, "mlflow.runner.sweep.best_run_id": best.record.run_id}
        best_metrics[metric] = best.value(metric)
    sweep.parent.finish(status, tags, best_metrics, files)
    store = sweep.parent.store
    for line in ui_lines(store.uri, store.experiment_id, sweep.parent.run_id):
        print(f"sweep: {line.removeprefix('run: ')}" if line.startswith("run: ") else line)
    if not _RESUMABLE.isdisjoint(statuses):
        print(f"To continue: {sweep.parent.command} sweep.resume={sweep.parent.run_id}", flush=True)
    return all_good


def _entries(sweep: Sweep) -> list[Entry]:
    """Returns the jobs with what they recorded, in MLflow or, where nothing is tracked, in their folders."""
    recorded: dict[Values, RunRecord] = {}
    if sweep.parent is not None:
        try:
            for run in sweep.parent.children():  # newest first: of a job that ran again, its last run counts
                recorded.setdefault(values_of(run.data.tags), from_run(run))
        except Exception as error:  # the table is of use without
            warn(f"the jobs' runs could not be read: {reason(error)}")
    entries = []
    for job in sweep.jobs:
        outcome = sweep.outcomes.get(job.number, Outcome("not run"))
        record = RunRecord("", job.name, "", {}, {})
        if job.number in sweep.finished_runs:
            record = from_run(sweep.finished_runs[job.number])
        elif outcome.status not in ("not run", "refused"):  # the record would be that of an earlier sweep
            if sweep.parent is None:
                tags = {VERDICT_TAG: verdict_of(job.folder)}
                record = replace(record, metrics=results_of(job.folder), tags=tags)
            record = recorded.get(values_of(varied_tags(job.varied)), record)
        entries.append(Entry(job, outcome, record))
    return entries


def best_of(entries: Sequence[Entry], metric: str, *, maximize: bool) -> Entry | None:
    """Returns the job that passed with the best finite value of a metric, the first of equals; None: there is none."""
    sign = -1.0 if maximize else 1.0
    finite = [entry for entry in entries if math.isfinite(entry.value(metric))]
    return min(finite, key=lambda entry: sign * entry.value(metric), default=None)


def table_of(entries: Sequence[Entry], metric: str) -> dict[str, list[str]]:
    """Returns the columns of the sweep's table by title, jobs in order; results are after the seconds."""
    columns = {"job": [str(entry.job.number) for entry in entries]}
    keys = list(dict.fromkeys(key for entry in entries for key in entry.job.varied))
    for key, title in short_keys(keys).items():
        columns[title] = [short_value(entry.job.varied.get(key, "")) for entry in entries]
    columns["status"] = [entry.outcome.status for entry in entries]
    columns["seconds"] = [f"{entry.outcome.seconds:.1f}" if entry.outcome.seconds else "" for entry in entries]
    return columns | result_columns([entry.record for entry in entries], metric, keys)


def _write(
    sweep: Sweep, entries: Sequence[Entry], table: Mapping[str, Sequence[str]], draw: Draw | None
) -> list[Path]:
    """Writes the table and the pictures; returns those that could be written."""
    folder = sweep.settings.folder
    columns = {**table, "note": [entry.outcome.note for entry in entries]}
    written: list[Path] = []
    with spared(str(folder / tables.FILE)):
        written.append(tables.write(folder, columns))
    metric = sweep.settings.group.metric
    judged = [entry for entry in entries if math.isfinite(entry.value(metric))]
    if draw is not None:
        with spared("a plot"):
            written += draw(folder)
    elif len(judged) > 1:
        for key in judged[0].job.varied:
            path = folder / f"{metric.replace('/', '_')}_by_{key.replace('/', '_')}.png"
            with spared("a plot"):
                _draw(path, metric, key, judged)
                written.append(path)
    return written


def _draw(path: Path, metric: str, key: str, judged: Sequence[Entry]) -> None:
    """Draws a metric by one key; jobs that share the other keys are joined if the values of the key are numbers."""
    series: dict[str, list[tuple[str, float]]] = {}
    for entry in judged:
        others = varied_name({name: value for name, value in entry.job.varied.items() if name != key})
        series.setdefault(others, []).append((entry.job.varied[key], entry.value(metric)))
    are_related = len(series) <= len(figures.SERIES)
    if not are_related:  # more series than colors are points without a name
        series = {"": [point for points in series.values() for point in points]}
    figures.against(path, metric, key, series, joined=are_related)


def _command(sweep: Sweep, job: Job) -> str:
    """Returns the command line that runs a job again, by itself and from its beginning."""
    overrides = [override for override in job.overrides if key_of(override) not in KEYS]
    return shlex.join(["python", "-m", sweep.settings.module, *sweep.flags, *overrides])

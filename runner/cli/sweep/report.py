"""Report of a sweep: the table, the plots, the best job, and the parent run with its final status."""

from __future__ import annotations

import math
import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from runner.checkpoint.arguments import key_of
from runner.cli.runs import plots
from runner.cli.runs import sheet as render
from runner.cli.runs.records import (
    RunRecord,
    directions,
    from_folder,
    from_run,
)
from runner.cli.runs.sheet import (
    Line,
    Stat,
    make_lines,
)
from runner.cli.sweep.jobs import (
    GOOD,
    Job,
    Outcome,
    jobs_text,
)
from runner.cli.sweep.launch import retyped
from runner.cli.sweep.parent import Parent
from runner.cli.sweep.state import Sweep
from runner.errors import DataError
from runner.host import outputs, session
from runner.host.outputs import spared
from runner.host.signals import interruption
from runner.task.metrics import LOSS
from runner.tracking import sweeps
from runner.tracking.base import Status
from runner.tracking.hidden import tags_of
from runner.tracking.member import (
    JOB_TAG,
    Values,
    values_of,
    varied_tags,
)
from runner.tracking.mlflow_import import warn
from runner.tracking.named import LATEST
from runner.tracking.reason import reason

_CURVES = ("eval/loss", "train/loss")
# A resumed sweep runs these again: they may end well this time. A pruned or a refused job would end as before.
_RESUMABLE = ("killed", "failed", "timeout", "not run")
_STORE_KEYS = ("tracking", "tracking.uri", "tracking.experiment")  # needed to find a sweep by its id
_ROWS_OF_DESCRIPTION = 30  # of the table on the sweep's page, which a tag of MLflow holds; table.md has all


@dataclass(frozen=True)
class Entry:
    """A job with its outcome and what it recorded."""

    job: Job
    outcome: Outcome
    record: RunRecord | None

    def line(self) -> Line:
        """Returns it as a line of a comparison."""
        if self.record is None:
            return Line(dict(self.job.varied), {}, ())
        stats = {name: Stat(value) for name, value in self.record.metrics.items()}
        return Line(dict(self.job.varied), stats, (self.record,))


@dataclass(frozen=True)
class _Report:
    """What is reported of a sweep."""

    sweep: Sweep
    entries: Sequence[Entry]
    best: Entry | None
    sheet: render.Sheet

    @property
    def best_value(self) -> float:
        """Metric of the best job; NaN if there is none."""
        if self.best is None or self.best.record is None:
            return math.nan
        return self.best.record.metrics[self.sweep.settings.metric]

    @property
    def counts(self) -> str:
        """How many jobs ended with each status."""
        parts = [f"{count} {status}" for status, count in Counter(_statuses(self.entries)).items()]
        return f"{jobs_text(len(self.entries))}: {', '.join(parts)}"


def finish(sweep: Sweep, error: BaseException | None) -> bool:
    """Ends a sweep: prints, writes and records its report.

    Args:
      sweep: started; its jobs have ended, or never began.
      error: what ended the sweep early; None where every job had its turn.

    Returns:
      Whether every job passed.
    """
    with sweep.stop.deferring():  # a signal now would leave the parent run half recorded
        entries = _entries(sweep)
        all_good = error is None and set(_statuses(entries)) <= set(GOOD)
        best = best_of(entries, sweep.settings.metric, sweep.direction)
        report = _Report(sweep, entries, best, table(entries, sweep.settings.metric, best))
        files: list[Path] = []
        if entries:
            files = _write(report)
            _print(report)
        if best is not None:
            print(f"best: job {best.job.number}, {sweep.settings.metric} {report.best_value:.4g}. To rerun it:")
            print(f"  {retyped(sweep.module, best.job.overrides, sweep.config)}", flush=True)
        if sweep.parent is not None:
            status: Status = "FAILED"
            if interruption(error):
                status = "KILLED"
            elif all_good:
                status = "FINISHED"
            _record(report, sweep.parent, files, status)
            if set(_statuses(entries)) & set(_RESUMABLE):
                print(f"To continue: {_resume_command(sweep, sweep.parent)}", flush=True)
        elif files:
            print(f"table and plots: {sweep.folder}")
        return all_good


def _statuses(entries: Sequence[Entry]) -> list[str]:
    return [entry.outcome.status for entry in entries]


def _resume_command(sweep: Sweep, parent: Parent) -> str:
    """Returns the command line that resumes the sweep, for the jobs that did not pass."""
    reference = parent.run_id
    with suppress(Exception):  # the tracking server may be unavailable: the id works in any case
        if sweeps.find(parent.store, LATEST).info.run_id == parent.run_id:
            reference = LATEST
    store = [argument for argument in session.current().arguments if key_of(argument) in _STORE_KEYS]
    return shlex.join(["python", "-m", sweep.module, f"sweep.resume={reference}", *store])


def _entries(sweep: Sweep) -> list[Entry]:
    """Returns the jobs with what they recorded, in MLflow or, where nothing is tracked, in their folders."""
    rows = sweep.ledger.rows()
    skipped = {number: from_run(run) for number, run in sweep.finished_runs.items()}
    # By values too: a sweep that was resumed with other values has had other jobs of the same numbers.
    recorded: dict[tuple[str, Values], RunRecord] = {}
    if sweep.parent is not None:
        try:
            notes: dict[str, str] = {}
            for job, outcome in rows:
                notes[str(job.number)] = outcome.note or outcome.status
            sweep.parent.mark_killed(notes)
            for run in sweep.parent.children():  # newest first: of a job that ran again, its last run counts
                tags = tags_of(run.data.tags)
                recorded.setdefault((tags.get(JOB_TAG, ""), values_of(tags)), from_run(run))
        except Exception as error:  # the table is of use without
            warn(f"the jobs' runs could not be read: {reason(error)}")
    entries = []
    for job, outcome in rows:
        record = skipped.get(job.number) or recorded.get((str(job.number), values_of(varied_tags(job.varied))))
        if record is None and sweep.parent is None:
            status = "FAILED"
            if outcome.status == "passed":
                status = "FINISHED"
            try:
                record = from_folder(job.folder, job.name, status)
            except DataError as error:
                outputs.warn(str(error))
        if outcome.status in ("not run", "refused"):  # the record is that of an earlier sweep in the folder
            record = None
        entries.append(Entry(job, outcome, record))
    return entries


def best_of(entries: Sequence[Entry], metric: str, direction: str) -> Entry | None:
    """Returns the job that passed with the best finite value of a metric; None where none has one."""
    best = None
    best_value = math.nan
    for entry in entries:
        if entry.record is None or entry.outcome.status not in ("passed", "skipped"):
            continue
        value = entry.record.metrics.get(metric, math.nan)
        if not math.isfinite(value):
            continue
        is_better = value > best_value if direction == "maximize" else value < best_value
        if best is None or is_better:
            best = entry
            best_value = value
    return best


def table(entries: Sequence[Entry], metric: str, best: Entry | None) -> render.Sheet:
    """Returns the sweep's table, jobs in order."""
    records = [entry.record for entry in entries if entry.record is not None]
    # Steps of different batch sizes are not a measure of speed.
    varies_batch_size = any("dataset.batch_size" in entry.job.varied for entry in entries)
    speed = "throughput/step_ms"
    if varies_batch_size:
        speed = "throughput/examples_per_second"
    evaluated = sorted(directions(records), key=lambda name: name == LOSS)  # the loss last
    metrics = list(dict.fromkeys((metric, *evaluated, speed, *_layout_metrics(entries))))
    lines = []
    numbers = []
    seconds = []
    verified = []
    best_row = None
    for row, entry in enumerate(entries):
        lines.append(entry.line())
        numbers.append(str(entry.job.number))
        seconds.append(f"{entry.outcome.seconds:.1f}" if entry.outcome.seconds else "")
        verified.append(_verified(entry))
        if entry is best:
            best_row = row
    extra = {"status": _statuses(entries), "seconds": seconds}
    sheet = render.sheet_of(lines, metrics, lead={"job": numbers}, extra=extra)
    if any(verified):
        sheet = _with_column(sheet, "verified", verified)
    return replace(sheet, best=best_row)


def _verified(entry: Entry) -> str:
    if entry.record is None:
        return ""
    tag = entry.record.tags.get("runner.verified", "")
    return {"true": "yes", "false": "NO"}.get(tag, "")


def _with_column(sheet: render.Sheet, title: str, cells: Sequence[str]) -> render.Sheet:
    rows = tuple((*row, cell) for row, cell in zip(sheet.rows, cells, strict=True))
    return replace(sheet, titles=(*sheet.titles, title), rows=rows)


def _layout_metrics(entries: Sequence[Entry]) -> list[str]:
    """Returns the metrics of the plan that a job recorded, if the sweep varies mesh or layout."""
    varied_groups: set[str] = set()
    for entry in entries:
        for key in entry.job.varied:
            varied_groups.add(key.split(".")[0])
    if not varied_groups & {"mesh", "layout"}:
        return []
    names: set[str] = set()
    for entry in entries:
        if entry.record is not None:
            names |= set(entry.record.metrics)
    return sorted(name for name in names if name.startswith("plan/"))


def _print(report: _Report) -> None:
    console = render.console()
    console.print()
    console.print(render.rich_table(report.sheet, report.sweep.name, console.width))
    for entry in report.entries:
        outcome = entry.outcome
        if outcome.note and outcome.status not in ("skipped", "pruned"):
            print(f"job {entry.job.number}, {entry.job.name}: {outcome.status}: {outcome.note}")
    print(report.counts, flush=True)


def _write(report: _Report) -> list[Path]:
    """Writes the table and the plots; returns those that could be written."""
    folder = report.sweep.folder
    sheet = _with_column(report.sheet, "note", [entry.outcome.note for entry in report.entries])
    written: list[Path] = []
    with spared(str(folder)):
        folder.mkdir(parents=True, exist_ok=True)
    for name, text in (("table.csv", render.to_csv(sheet)), ("table.md", render.to_markdown(sheet))):
        with spared(str(folder / name)):
            (folder / name).write_text(text)
            written.append(folder / name)
    with spared("a plot"):
        _draw(report, written)
    return written


def _draw(report: _Report, written: list[Path]) -> None:
    """Draws the plots; adds each file to `written`, so that one that fails leaves those before it."""
    sweep = report.sweep
    metric = sweep.settings.metric
    file_prefix = metric.replace("/", "_")
    judged: list[Entry] = []
    for entry in report.entries:
        if entry.record is not None and metric in entry.record.metrics:
            judged.append(entry)
    keys = [key.lstrip("+") for key in sweep.varied]
    lines = make_lines(list(map(_record_with_values, judged)), keys)
    is_search = sweep.draw_search is not None
    if len(judged) > 1:
        for key in keys:
            path = sweep.folder / f"{file_prefix}_by_{key.replace('/', '_')}.png"
            plots.against(path, metric, key, lines, related=not is_search)
            written.append(path)
    if sweep.draw_search is not None:
        written += sweep.draw_search(sweep.folder)
    if sweep.parent is not None:
        _draw_curves(report, sweep.parent, judged, written)


def _record_with_values(entry: Entry) -> RunRecord:
    """Returns the job's record with what varied as tags, which a record from a folder or a skipped run lacks."""
    assert entry.record is not None
    return replace(entry.record, tags=varied_tags(entry.job.varied))


def _draw_curves(report: _Report, parent: Parent, judged: Sequence[Entry], written: list[Path]) -> None:
    """Draws the losses, the jobs with the best results in colors.

    Args:
      report: of the sweep.
      parent: its run.
      judged: the jobs that have the sweep's metric.
      written: gets the files.
    """
    sweep = report.sweep
    maximize = sweep.direction == "maximize"
    worst = math.inf
    if maximize:
        worst = -math.inf
    results: dict[str, float] = {}
    for entry in judged:
        assert entry.record is not None
        value = entry.record.metrics[sweep.settings.metric]
        results[entry.job.name] = value if math.isfinite(value) else worst
    runs: dict[str, RunRecord] = {}
    for entry in report.entries:
        if entry.record is not None:
            runs[entry.job.name] = entry.record
    best_first = dict(sorted(runs.items(), key=lambda run: results.get(run[0], worst), reverse=maximize))
    path = sweep.folder / "curves.png"
    if plots.curves(path, parent.store.client, best_first, _CURVES):
        written.append(path)


def _record(report: _Report, parent: Parent, files: Sequence[Path], status: Status) -> None:
    """Stores the results in the parent run and prints where they can be seen."""
    entries = report.entries
    not_run: list[str] = []
    for entry in entries:
        if entry.outcome.status == "not run":
            not_run.append(entry.job.name)
    tags = {"runner.sweep.result": report.counts, "runner.sweep.not_run": "; ".join(not_run)}
    metrics = {f"sweep/{name}": float(count) for name, count in _totals(entries).items()}
    best = report.best
    if best is not None and best.record is not None:
        tags |= {"runner.sweep.best": best.job.name, "runner.sweep.best_run_id": best.record.run_id}
        metrics[f"best/{report.sweep.settings.metric}"] = report.best_value
    for entry in entries:
        if entry.record is None:
            continue
        if entry.outcome.status == "pruned":
            parent.tag_child(entry.record.run_id, {"runner.pruned": "true"})
    parent.finish(status, tags, metrics, files)
    parent.tell(status, report.counts, _description(report, parent))
    for line in parent.describe():
        if line.startswith("run: "):
            line = f"sweep: {line.removeprefix('run: ')}"
        print(line)


def _description(report: _Report, parent: Parent) -> list[str]:
    """Returns parts of the sweep's description, in Markdown: the best job, and the table with links to the runs."""
    parts = []
    best = report.best
    if best is not None and best.record is not None:
        overrides = shlex.join(best.job.overrides)
        link = f"[{best.job.name}]({parent.address(best.record.run_id)})"
        value = f"**{report.best_value:.4g}**"
        parts.append(f"Best by {report.sweep.settings.metric}: {link}, {value}: `python -m runner {overrides}`")
    rows: list[tuple[str, ...]] = []
    for row, entry in zip(report.sheet.rows, report.entries, strict=True):
        job = row[0]
        if entry.record is not None and entry.record.run_id:
            job = f"[{job}]({parent.address(entry.record.run_id)})"
        rows.append((job, *row[1:]))
    parts.append(render.to_markdown(replace(report.sheet, rows=tuple(rows[:_ROWS_OF_DESCRIPTION]))))
    if len(rows) > _ROWS_OF_DESCRIPTION:
        parts.append(f"and {len(rows) - _ROWS_OF_DESCRIPTION} more in table.md")
    return parts


def _totals(entries: Sequence[Entry]) -> Mapping[str, int]:
    totals = {"passed": 0, "failed": 0, "not_run": 0}
    for entry in entries:
        if entry.outcome.status in GOOD:
            totals["passed"] += 1
        elif entry.outcome.status == "not run":
            totals["not_run"] += 1
        else:
            totals["failed"] += 1
    return totals

"""What a sweep leaves behind: the table, the plots, the best job, and a parent run whose status is true."""

from __future__ import annotations

import math
import shlex
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from runner.compare import curves, plots, render
from runner.compare.lines import make_lines
from runner.compare.metrics import directions
from runner.compare.records import RunRecord, from_folder, from_run
from runner.errors import DataError
from runner.host import outputs, session
from runner.host.outputs import spared
from runner.host.signals import interruption
from runner.sweep import scaling
from runner.sweep.jobs import GOOD
from runner.sweep.launch import retyped
from runner.sweep.member import JOB_TAG, Values, values_of, varied_tags
from runner.sweep.parent import Parent
from runner.sweep.scaling import Entry
from runner.sweep.state import Sweep
from runner.task.metrics import LOSS
from runner.tracking import sweeps
from runner.tracking.base import Status
from runner.tracking.hidden import tags_of
from runner.tracking.mlflow_import import warn
from runner.tracking.reason import reason
from runner.training.checkpoint.arguments import key_of

_CURVES = ("eval/loss", "train/loss")
_AGAIN = ("killed", "failed", "timeout", "not run")  # what a resumed sweep tries again, with another end perhaps
_STORE = ("tracking", "tracking.uri", "tracking.experiment")  # where a sweep is looked for by its id
_MOST_ROWS = 30  # of the table in the sweep's description; table.md has all
_MOST_TICKS = 12  # values of a key that a heat map names


def finish(sweep: Sweep, error: BaseException | None) -> bool:
    """Ends a sweep: tells what happened, and stores it.

    Args:
      sweep: started; its jobs have ended, or never began.
      error: what broke the sweep off; None where every job had its turn.

    Returns:
      Whether every job passed.
    """
    with sweep.stop.deferring():  # a signal now would leave the parent half told
        entries = _entries(sweep)
        good = error is None and all(entry.outcome.status in GOOD for entry in entries)
        best = best_of(entries, sweep.settings.metric, sweep.direction)
        sheet = table(entries, sweep.settings.metric, best)
        noted = _with_column(sheet, "note", [entry.outcome.note for entry in entries])
        files = _write(sweep, entries, noted) if entries else []
        if entries:
            _show(sweep.name, entries, sheet)
        if best is not None and best.record is not None:
            value = best.record.metrics[sweep.settings.metric]
            print(f"best: job {best.job.number}, {sweep.settings.metric} {value:.4g}. To rerun it:")
            print(f"  {retyped(sweep.module, best.job.overrides, sweep.config)}", flush=True)
        if sweep.parent is not None:
            status: Status = "KILLED" if interruption(error) else "FINISHED" if good else "FAILED"
            _store(sweep, sweep.parent, entries, best, files, sheet, status)
        elif files:
            print(f"table and plots: {sweep.folder}")
        if sweep.parent is not None and any(entry.outcome.status in _AGAIN for entry in entries):
            print(f"To continue: {_resuming(sweep, sweep.parent)}", flush=True)
        return good


def _resuming(sweep: Sweep, parent: Parent) -> str:
    """Returns the command line that takes the sweep up again, for what did not pass."""
    name = parent.run_id
    with suppress(Exception):  # the store may be away
        name = sweeps.LATEST if sweeps.find(parent.store, sweeps.LATEST).info.run_id == name else name
    store = [one for one in session.current().arguments if key_of(one) in _STORE]
    return shlex.join(["python", "-m", sweep.module, f"sweep.resume={name}", *store])


def _entries(sweep: Sweep) -> list[Entry]:
    rows = sweep.ledger.rows()
    before = {number: from_run(run) for number, run in sweep.before.items()}
    own: dict[tuple[str, Values], RunRecord] = {}  # an earlier sitting's job of a number may have been another
    if sweep.parent is not None:
        try:
            sweep.parent.mark_killed({str(job.number): outcome.note or outcome.status for job, outcome in rows})
            for run in sweep.parent.children():  # newest first: a job that ran again counts as it is now
                tags = tags_of(run.data.tags)
                own.setdefault((tags.get(JOB_TAG, ""), values_of(tags)), from_run(run))
        except Exception as error:  # the table is worth having without
            warn(f"the jobs' runs could not be read: {reason(error)}")
    entries = []
    for job, outcome in rows:
        record = before.get(job.number) or own.get((str(job.number), values_of(varied_tags(job.varied))))
        if record is None and sweep.parent is None:
            try:
                record = from_folder(job.folder, job.name, "FINISHED" if outcome.status == "passed" else "FAILED")
            except DataError as error:
                outputs.warn(str(error))
        entries.append(Entry(job, outcome, None if outcome.status in ("not run", "refused") else record))
    return scaling.with_efficiency(entries)


def best_of(entries: Sequence[Entry], metric: str, direction: str) -> Entry | None:
    """Returns the job that passed with the best value of a metric; NaN is never best."""
    values = [
        (entry.record.metrics[metric], entry)
        for entry in entries
        if entry.outcome.status in ("passed", "skipped")
        and entry.record is not None
        and math.isfinite(entry.record.metrics.get(metric, math.nan))
    ]
    chosen = (max if direction == "maximize" else min)(values, key=lambda pair: pair[0], default=None)
    return chosen[1] if chosen else None


def table(entries: Sequence[Entry], metric: str, best: Entry | None) -> render.Sheet:
    """Returns the sweep's table, jobs in order."""
    batches_vary = any("dataset.batch_size" in entry.job.varied for entry in entries)
    speed = "throughput/examples_per_second" if batches_vary else "throughput/step_ms"
    evaluated = sorted(directions([entry.record for entry in entries if entry.record]), key=LOSS.__eq__)  # loss last
    metrics = list(dict.fromkeys((metric, *evaluated, speed, *_layout_metrics(entries))))
    sheet = render.sheet_of(
        [entry.line() for entry in entries],
        metrics,
        lead={"job": [str(entry.job.number) for entry in entries]},
        extra={
            "status": [entry.outcome.status for entry in entries],
            "seconds": [f"{entry.outcome.seconds:.1f}" if entry.outcome.seconds else "" for entry in entries],
        },
    )
    verified = [entry.record.tags.get("runner.verified", "") if entry.record else "" for entry in entries]
    if any(verified):
        sheet = _with_column(sheet, "verified", [{"true": "yes", "false": "NO"}.get(one, "") for one in verified])
    return replace(sheet, best=next((index for index, entry in enumerate(entries) if entry is best), None))


def _with_column(sheet: render.Sheet, title: str, cells: Sequence[str]) -> render.Sheet:
    rows = tuple((*row, cell) for row, cell in zip(sheet.rows, cells, strict=True))
    return replace(sheet, titles=(*sheet.titles, title), rows=rows)


def _layout_metrics(entries: Sequence[Entry]) -> list[str]:
    """Names what a run may record of its layout, where any did."""
    names = sorted({name for entry in entries if entry.record for name in entry.record.metrics})
    if not any(key.split(".")[0] in ("mesh", "layout") for entry in entries for key in entry.job.varied):
        return []
    return [name for name in names if name.startswith(("plan/", scaling.EFFICIENCY))]


def _show(name: str, entries: Sequence[Entry], sheet: render.Sheet) -> None:
    console = render.console()
    console.print()
    console.print(render.rich_table(sheet, name, console.width))
    for entry in entries:
        if entry.outcome.note and entry.outcome.status not in ("skipped", "pruned"):
            print(f"job {entry.job.number}, {entry.job.name}: {entry.outcome.status}: {entry.outcome.note}")
    print(_counts(entries), flush=True)


def _counts(entries: Sequence[Entry]) -> str:
    counts = Counter(entry.outcome.status for entry in entries)
    return f"{len(entries)} jobs: " + ", ".join(f"{count} {status}" for status, count in counts.items())


def _write(sweep: Sweep, entries: Sequence[Entry], sheet: render.Sheet) -> list[Path]:
    written = []
    with spared(str(sweep.folder)):
        sweep.folder.mkdir(parents=True, exist_ok=True)
    for name, text in (("table.csv", render.to_csv(sheet)), ("table.md", render.to_markdown(sheet))):
        with spared(str(sweep.folder / name)):
            (sweep.folder / name).write_text(text)
            written.append(sweep.folder / name)
    try:
        written += _plots(sweep, entries)
    except Exception as error:  # a picture is not worth a sweep
        warn(f"a plot could not be drawn: {type(error).__name__}: {error}")
    return written


def _plots(sweep: Sweep, entries: Sequence[Entry]) -> list[Path]:
    metric = sweep.settings.metric
    written = []
    done = [entry for entry in entries if entry.record is not None and metric in entry.record.metrics]
    keys = [key.lstrip("+") for key in sweep.varied]
    records = [_named(entry) for entry in done]
    lines = make_lines(records, keys)
    for key in keys if len(done) > 1 else []:
        path = sweep.folder / f"{metric.replace('/', '_')}_by_{key.replace('/', '_')}.png"
        plots.against(path, metric, key, lines, related=sweep.draw_search is None)
        written.append(path)
    if sweep.draw_search is not None:
        written += sweep.draw_search(sweep.folder)
    elif (
        len(keys) == 2
        and len(done) > 1
        and all(len({line.values[key] for line in lines}) <= _MOST_TICKS for key in keys)
    ):
        path = sweep.folder / f"{metric.replace('/', '_')}_heat.png"
        plots.heat(path, metric, (keys[0], keys[1]), lines)
        written.append(path)
    return written + _curves(sweep, entries, done)


def _named(entry: Entry) -> RunRecord:
    """Returns the job's record with what varied as tags, which a record from a folder or a skipped run lacks."""
    assert entry.record is not None
    return replace(entry.record, tags=varied_tags(entry.job.varied))


def _curves(sweep: Sweep, entries: Sequence[Entry], done: Sequence[Entry]) -> list[Path]:
    """Draws the losses, the jobs with the best results in colors; `done` has those that were judged."""
    written: list[Path] = []
    if sweep.parent is None:
        return written
    metric = sweep.settings.metric
    maximize = sweep.direction == "maximize"
    result = {entry.job.name: entry.record.metrics[metric] for entry in done if entry.record is not None}
    worst = -math.inf if maximize else math.inf
    ranked = {name: value if math.isfinite(value) else worst for name, value in result.items()}
    runs = {entry.job.name: entry.record for entry in entries if entry.record is not None}
    colors = plots.looks(sorted(runs, key=lambda name: ranked.get(name, worst), reverse=maximize))
    for metric in _CURVES:
        found = curves.read(sweep.parent.store.client, runs, metric)
        if found.points:
            path = sweep.folder / f"{metric.replace('/', '_')}_curves.png"
            plots.curves(path, found, colors)
            written.append(path)
    return written


def _store(
    sweep: Sweep,
    parent: Parent,
    entries: Sequence[Entry],
    best: Entry | None,
    files: Sequence[Path],
    sheet: render.Sheet,
    status: Status,
) -> None:
    tags = {"runner.sweep.result": _counts(entries)}
    missing = [entry.job.name for entry in entries if entry.outcome.status == "not run"]
    tags["runner.sweep.not_run"] = "; ".join(missing)
    metrics = {f"sweep/{name}": float(count) for name, count in _totals(entries).items()}
    if best is not None and best.record is not None:
        metric = sweep.settings.metric
        tags |= {"runner.sweep.best": best.job.name, "runner.sweep.best_run_id": best.record.run_id}
        metrics[f"best/{metric}"] = best.record.metrics[metric]
    for entry in entries:
        if entry.record is None:
            continue
        if entry.outcome.status == "pruned":
            parent.tag_child(entry.record.run_id, {"runner.pruned": "true"})
        if scaling.EFFICIENCY in entry.record.metrics:
            parent.measure_child(entry.record.run_id, {scaling.EFFICIENCY: entry.record.metrics[scaling.EFFICIENCY]})
    parent.finish(status, tags, metrics, files)
    parent.tell(status, tags["runner.sweep.result"], _page(sweep, parent, entries, best, sheet))
    tasks = {entry.record.params.get("task.name", "") for entry in entries if entry.record is not None}
    for line in parent.describe(tasks.pop() if len(tasks) == 1 else None):
        print(line.replace("run: ", "sweep: ", 1) if line.startswith("run: ") else line)


def _page(
    sweep: Sweep, parent: Parent, entries: Sequence[Entry], best: Entry | None, sheet: render.Sheet
) -> list[str]:
    """Returns parts of the sweep's description, in Markdown: the best job, and the table with links to the runs."""
    ids = [entry.record.run_id if entry.record is not None else "" for entry in entries]
    parts = []
    if best is not None and best.record is not None:
        value = best.record.metrics[sweep.settings.metric]
        words = shlex.join(best.job.overrides)
        link = f"[{best.job.name}]({parent.address(best.record.run_id)})"
        parts.append(f"Best by {sweep.settings.metric}: {link}, **{value:.4g}**: `python -m runner {words}`")
    linked = [
        (f"[{row[0]}]({parent.address(run_id)})" if run_id else row[0], *row[1:])
        for row, run_id in zip(sheet.rows, ids, strict=True)
    ]
    parts.append(render.to_markdown(replace(sheet, rows=tuple(linked[:_MOST_ROWS]))))
    if len(linked) > _MOST_ROWS:
        parts.append(f"and {len(linked) - _MOST_ROWS} more in table.md")
    return parts


def _totals(entries: Sequence[Entry]) -> dict[str, int]:
    good = sum(entry.outcome.status in GOOD for entry in entries)
    waiting = sum(entry.outcome.status == "not run" for entry in entries)
    return {"passed": good, "failed": len(entries) - good - waiting, "not_run": waiting}

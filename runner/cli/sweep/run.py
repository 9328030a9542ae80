"""Runs a sweep: the jobs of a grid or of a search, each in a process of its own, and its report at the end.

The report is the table, a picture, the best job, and the parent run with its final status.
"""

from __future__ import annotations

import itertools
import math
import os
import re
import shlex
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from hydra.core.config_loader import ConfigLoader
from hydra.core.override_parser.types import Override
from omegaconf import DictConfig

from runner import figures
from runner.checkpoint.arguments import KEYS, MULTIRUN, key_of, without
from runner.cli import tables
from runner.cli.runs.records import VERDICT_TAG, RunRecord, from_run, result_columns, results_of, verdict_of
from runner.cli.sweep.settings import Settings
from runner.cli.sweep.sweep import Sweep, Values, values_of
from runner.cluster import accelerators
from runner.cluster.jobs import GOOD, LOG_FILE, Job, Outcome, RunningJob, jobs_text, run_jobs
from runner.cluster.membership import Membership, short_keys, short_value, varied_name, varied_tags
from runner.config.convert import as_typed
from runner.config.quoting import quoted
from runner.config.schema_hydra import SearchSweeper
from runner.errors import ConfigError, TrackingError
from runner.host import cores
from runner.host.late import late
from runner.host.outputs import spared
from runner.host.paths import shown
from runner.host.signals import interruption
from runner.task import metrics
from runner.tracking.base import Status
from runner.tracking.location import ui_lines
from runner.tracking.mlflow_setup import reason, warn

if TYPE_CHECKING:
    from runner.cli.sweep import search
else:
    # It imports Optuna, which a grid does without.
    search = late("runner.cli.sweep.search")

# Hydra's own overrides that select how jobs are launched or where they write: each job's command line has its own.
_LAUNCHING = ("hydra.launcher", "hydra/launcher", "hydra.sweep", "hydra/sweep", "hydra.run", "hydra.mode")
# A resumed sweep runs these again: they may end well this time. A refused job would end as before.
_RESUMABLE = {"killed", "failed", "not run"}


def run(settings: Settings, config: DictConfig, loader: ConfigLoader, flags: Sequence[str]) -> bool:
    """Runs a sweep to its end, however that comes, and reports it; returns whether every job passed."""
    sweep = Sweep(settings, config, loader, [flag for flag in flags if flag not in MULTIRUN])
    study: search.Search | None = None
    ended_by: BaseException | None = None
    passed = False
    try:
        if isinstance(settings.sweeper, SearchSweeper):
            study = search.Search(sweep, settings.sweeper)
        _run_jobs(sweep, study)
    except BaseException as error:
        ended_by = error
        raise
    finally:
        with sweep.stop.deferring():  # a signal now must not keep the sweep's run from getting its status
            # Without a record, such an error came before any job: there is nothing to report.
            if sweep.parent is not None or not isinstance(ended_by, ConfigError | TrackingError):
                passed = finish(sweep, ended_by, study)
    return passed


def _run_jobs(sweep: Sweep, study: search.Search | None) -> None:
    settings = sweep.settings
    launcher = settings.launcher
    gpus: list[str] = []
    if launcher.max_parallel > 1:
        gpus = accelerators.take(accelerators.find(accelerators.GPU).count)

    def start(job: Job, own_gpus: Sequence[str]) -> RunningJob:
        parent_run_id = None if sweep.parent is None else sweep.parent.run_id
        tags = {"mlflow.runner.sweep.job": str(job.number), **varied_tags(job.varied)}
        environment = Membership(parent_run_id, job.name, tags).environment()
        if launcher.max_parallel > 1:
            # Else each job would start as many threads as the machine has cores.
            environment[cores.VARIABLE] = str(max(1, cores.available() // launcher.max_parallel))
        started = RunningJob(job, arguments(settings.module, sweep.flags, job, sweep.config), environment, own_gpus)
        line = f"{job}: started"
        if own_gpus:
            line += f" on GPU {', '.join(own_gpus)}"
        print(line, flush=True)
        return started

    def ended(job: Job, outcome: Outcome) -> None:
        sweep.outcomes[job.number] = outcome
        if outcome.status not in GOOD:
            sweep.failed.append(job)
        if study is not None:
            study.tell(job, outcome)
        parts = [f"{outcome.status} after {outcome.seconds:.0f} s"]
        if outcome.status == "passed":
            parts.append(_result(job, settings.group.metric))
        parts.append(outcome.note)
        print(f"{job}: {', '.join(filter(None, parts))}", flush=True)

    def goes_on() -> bool:
        if not settings.group.stop_on_failure or not sweep.failed:
            return True
        print(f"{sweep.failed[0]} did not pass, so no other job starts (sweep.stop_on_failure)", flush=True)
        return False

    if study is None:
        if settings.group.resume:
            sweep.record()
        grid = []
        for number, overrides in enumerate(combinations(settings.overrides)):
            job = sweep.plan(overrides, number)
            if job is not None:
                grid.append(job)
        if not grid and not sweep.finished_runs:
            raise ConfigError(_refusal(sweep))
        sweep.record()
        jobs = iter(grid)
        count = len(grid)
    else:
        jobs = study.trials()
        count = study.count
    if count:
        text = jobs_text(count)
        # Obvious where all jobs run at once, or one after another.
        if 1 < launcher.max_parallel < count:
            text += f", {launcher.max_parallel} at a time"
        print(f"{settings.name}: {text}; output: {shown(settings.folder)}/<job>/{LOG_FILE}", flush=True)
    run_jobs(jobs, start, ended, sweep.stop, goes_on, max_parallel=launcher.max_parallel, gpus=gpus)


def _refusal(sweep: Sweep) -> str:
    """Returns why no job can start: the first reason, with all values of the key that it names."""
    reasons = []
    for job in sweep.jobs:
        why = sweep.outcomes[job.number].note
        key = key_of(why)
        if key in job.varied:
            value = re.compile(rf"={re.escape(job.varied[key])}(?![\w.])")
            why = f"={sweep.settings.varied[key]}".join(value.split(why))
        reasons.append(why)
    if len(reasons) == 1:
        return reasons[0]
    if len(set(reasons)) == 1:
        return f"all {len(reasons)} jobs: {reasons[0]}"
    return f"none of {len(reasons)} jobs is valid, the first: {reasons[0]}"


def _result(job: Job, metric: str) -> str:
    """Returns the result in a job's folder: the metric, or of a verification the verdict; empty: there is none."""
    value = results_of(job.folder).get(metric)
    return verdict_of(job.folder) if value is None else f"{metric} {value:.4g}"


def arguments(module: str, flags: Sequence[str], job: Job, config: DictConfig) -> list[str]:
    """Returns the command line of a job, with the sweep's overrides of Hydra; a person can type it again."""
    of_hydra = as_typed(config.hydra.overrides.hydra)
    shared = [override for override in of_hydra if not key_of(override).startswith(_LAUNCHING)]
    # A preset may set MULTIRUN: the job would be a sweep of its own.
    own = ["hydra.mode=RUN", f"hydra.run.dir={quoted(os.fspath(job.folder))}"]
    return [sys.executable, "-m", module, *flags, *job.overrides, *shared, *own]


def combinations(overrides: Sequence[Override]) -> list[list[str]]:
    """Returns the overrides of each job of a grid; the first key that varies changes slowest."""
    choices: dict[str, list[str]] = {}
    for override in overrides:
        key = override.get_key_element()
        choices[key] = [str(override.input_line)]
        if override.is_sweep_override():
            choices[key] = [f"{key}={value}" for value in override.sweep_string_iterator()]
    return list(map(list, itertools.product(*choices.values())))


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


def finish(sweep: Sweep, error: BaseException | None, study: search.Search | None) -> bool:
    """Ends a sweep, which `error` may have ended early, and reports it; returns whether every job passed."""
    entries = _entries(sweep)
    metric = sweep.settings.group.metric
    table = table_of(entries, metric)
    statuses = table["status"]
    all_good = error is None and set(statuses) <= GOOD
    judged = [entry for entry in entries if math.isfinite(entry.value(metric))]
    lowest_first = sweep.settings.group.direction != metrics.MAXIMIZE
    pick = min if lowest_first else max
    best = pick(judged, key=lambda entry: entry.value(metric), default=None)
    files: list[Path] = []
    counts = ", ".join(f"{count} {status}" for status, count in Counter(statuses).items())
    result = f"{jobs_text(len(entries))}: {counts}"
    if entries:
        files = _write(sweep, judged, {**table, "note": [entry.outcome.note for entry in entries]}, study)
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
        # By itself and from its beginning.
        own = without(best.job.overrides, KEYS)
        print(f"  {shlex.join(['python', '-m', sweep.settings.module, *sweep.flags, *own])}", flush=True)
    if sweep.parent is None:
        if files:
            print(f"table and plots: {sweep.settings.folder}")
        return all_good
    status: Status = "FINISHED"
    if interruption(error):
        status = "KILLED"
    elif not all_good:
        status = "FAILED"
    tags = {"runner.sweep.result": result}
    best_metrics: dict[str, float] = {}
    if best is not None:
        tags |= {"runner.sweep.best": best.job.name, "mlflow.runner.sweep.best_run_id": best.record.run_id}
        best_metrics[metric] = best.value(metric)
    sweep.parent.finish(status, tags, best_metrics, files)
    store = sweep.parent.store
    links = ui_lines(store.uri, store.experiment_id, sweep.parent.run_id, metric=metric, lowest_first=lowest_first)
    print(*links, sep="\n")
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
    sweep: Sweep, judged: Sequence[Entry], columns: Mapping[str, Sequence[str]], study: search.Search | None
) -> list[Path]:
    """Writes the table, and pictures of the jobs that have the metric; returns those that could be written."""
    folder = sweep.settings.folder
    written: list[Path] = []
    with spared(str(folder / tables.FILE)):
        written.append(tables.write(folder, columns))
    metric = sweep.settings.group.metric
    if study is not None:
        with spared("a plot"):
            written += study.draw(folder)
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
        others = dict(entry.job.varied)
        value = others.pop(key)
        series.setdefault(varied_name(others), []).append((value, entry.value(metric)))
    are_related = len(series) <= len(figures.SERIES)
    if not are_related:  # more series than colors are points without a name
        series = {"": list(itertools.chain(*series.values()))}
    figures.against(path, metric, key, series, joined=are_related)

"""Runs a sweep: the jobs of a grid or of a search, each in a process of its own, and the report at the end."""

from __future__ import annotations

import itertools
import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from hydra.core.config_loader import ConfigLoader
from hydra.core.override_parser.types import Override
from omegaconf import DictConfig

from runner.checkpoint.arguments import MULTIRUN, key_of
from runner.cli.runs.records import results_of, verdict_of
from runner.cli.sweep import report
from runner.cli.sweep.settings import Settings
from runner.cli.sweep.sweep import Sweep
from runner.cluster import accelerators
from runner.cluster.jobs import GOOD, LOG_FILE, Job, Outcome, RunningJob, jobs_text, run_jobs
from runner.cluster.membership import Membership
from runner.config.convert import as_typed
from runner.config.quoting import quoted
from runner.config.schema_hydra import SearchSweeper
from runner.host import cores
from runner.host.late import late
from runner.host.paths import shown

if TYPE_CHECKING:
    from runner.cli.sweep import search
else:
    # It imports Optuna, which a grid does without.
    search = late("runner.cli.sweep.search")

# Hydra's own overrides that select how jobs are launched or where they write: each job's command line has its own.
_LAUNCHING = ("hydra.launcher", "hydra/launcher", "hydra.sweep", "hydra/sweep", "hydra.run", "hydra.mode")


def run(settings: Settings, config: DictConfig, loader: ConfigLoader, flags: Sequence[str]) -> bool:
    """Runs a sweep to its end, however that comes, and reports it; returns whether every job passed.

    Raises:
      Interrupted: a signal came; the running jobs were ended cleanly, the rest did not start.
    """
    space = {}
    if isinstance(settings.sweeper, SearchSweeper):
        space = search.space_of(settings.overrides)
    sweep = Sweep(settings, config, loader, [flag for flag in flags if flag not in MULTIRUN])
    study: search.Search | None = None
    ended_by: BaseException | None = None
    passed = False
    try:
        if isinstance(settings.sweeper, SearchSweeper):
            study = search.Search(sweep, settings.sweeper, space)
        _run_jobs(sweep, study)
    except BaseException as error:
        ended_by = error
        raise
    finally:
        with sweep.stop.deferring():  # a signal now must not keep the sweep's run from getting its status
            passed = report.finish(sweep, ended_by, study.draw if study else None)
    return passed


def _run_jobs(sweep: Sweep, study: search.Search | None) -> None:
    settings = sweep.settings
    launcher = settings.launcher
    gpus: list[str] = []
    if launcher.max_parallel > 1:
        gpus = accelerators.take(accelerators.find(accelerators.GPU).count)

    def start(job: Job, own_gpus: Sequence[str]) -> RunningJob:
        parent_run_id = None if sweep.parent is None else sweep.parent.run_id
        environment = Membership(parent_run_id, job.number, dict(job.varied)).environment()
        if launcher.max_parallel > 1:
            # Else each job would start as many threads as the machine has cores.
            environment[cores.VARIABLE] = str(max(1, cores.available() // launcher.max_parallel))
        started = RunningJob(job, arguments(settings.module, sweep.flags, job, sweep.config), environment, own_gpus)
        where = f" on GPU {', '.join(own_gpus)}" if own_gpus else ""
        print(f"{job}: started{where}", flush=True)
        return started

    def ended(job: Job, outcome: Outcome) -> None:
        sweep.outcomes[job.number] = outcome
        if outcome.status not in GOOD:
            sweep.failed.append(job)
        if study is not None:
            study.tell(job, outcome)
        result = _result(job, settings.group.metric) if outcome.status == "passed" else ""
        parts = [f"{outcome.status} after {outcome.seconds:.0f} s", result, outcome.note]
        print(f"{job}: {', '.join(filter(None, parts))}", flush=True)

    def goes_on() -> bool:
        if not settings.group.stop_on_failure or not sweep.failed:
            return True
        print(f"{sweep.failed[0]} did not pass, so no other job starts (sweep.stop_on_failure)", flush=True)
        return False

    if study is None:
        planned = [sweep.plan(overrides, number) for number, overrides in enumerate(combinations(settings.overrides))]
        grid = [job for job in planned if job is not None]
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
    return [list(combination) for combination in itertools.product(*choices.values())]

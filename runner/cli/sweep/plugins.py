"""Hydra plugins: launchers of one process per job, and the sweepers of grids and of searches."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from hydra.core.config_loader import ConfigLoader
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.core.plugins import Plugins
from hydra.core.utils import JobReturn, JobStatus
from hydra.plugins.launcher import Launcher
from hydra.plugins.sweeper import Sweeper
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig, OmegaConf

from runner.cli.sweep import state
from runner.cli.sweep.jobs import (
    Job,
    jobs_text,
)
from runner.cli.sweep.launch import local_command
from runner.cli.sweep.process import (
    LOG_FILE,
    JobProcess,
)
from runner.cli.sweep.schedule import (
    Running,
    run_jobs,
)
from runner.cli.sweep.settings import interval_error
from runner.host.late import late
from runner.host.paths import shown

if TYPE_CHECKING:
    from submitit import Executor

    from runner.cli.sweep import (
        cluster,
        display,
        search,
    )
    from runner.cli.sweep.display import (
        JobsDisplay,
        Judge,
    )
else:
    # Hydra imports its plugins with every command: these import submitit, Optuna and rich.
    cluster = late("runner.cli.sweep.cluster")
    search = late("runner.cli.sweep.search")
    display = late("runner.cli.sweep.display")


class ProcessLauncher(Launcher):
    """Runs each job in a process of its own on this machine.

    Args:
      max_parallel: jobs at a time, which share the cores.
      timeout: longest wall time of a job in seconds; None: no limit.
    """

    def __init__(self, max_parallel: int = 1, timeout: float | None = None) -> None:
        self.max_parallel = max_parallel
        self.timeout = timeout
        self._config: DictConfig | None = None

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        """Takes the multirun's config, which is checked; a job starts the command, and does not call the function."""
        del hydra_context, task_function
        self._config = config

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> Sequence[JobReturn]:
        """Runs jobs that the sweep knows by number; outcomes go to the sweep, so no job's failure raises here."""
        sweep = state.current()
        jobs = sweep.ledger.jobs[initial_job_idx : initial_job_idx + len(job_overrides)]
        self.run(iter(jobs), sweep, count=len(jobs))
        return [JobReturn(overrides=list(job.overrides), status=JobStatus.COMPLETED) for job in jobs]

    def run(self, jobs: Iterator[Job], judge: Judge, *, count: int, report: str | None = None) -> None:
        """Runs jobs until there are no more.

        Args:
          jobs: is asked for the next one when there is room for it.
          judge: decides which job stops, and gets the outcomes.
          count: how many there may be.
          report: metric whose values the jobs write to a file as they come; None: none.

        Raises:
          Interrupted: a signal came; the running jobs were ended.
        """
        sweep = state.current()
        if count:
            text = jobs_text(count)
            # Obvious where all jobs run at once, or one after another.
            if 1 < self.max_parallel < count:
                text += f", {self.max_parallel} at a time"
            print(f"{sweep.name}: {text}; output: {shown(sweep.folder)}/<job>/{LOG_FILE}", flush=True)
        with display.JobsDisplay(judge) as watcher:
            run_jobs(
                jobs,
                lambda job: self.start(job, report, watcher),
                watcher,
                sweep.stop,
                max_parallel=self.max_parallel,
                timeout_s=self.timeout,
            )

    def start(self, job: Job, report: str | None, watcher: JobsDisplay) -> Running:
        """Starts a job."""
        assert self._config is not None
        sweep = state.current()
        command = local_command(sweep, job, self._config, parallel=self.max_parallel, report=report)
        watcher.started(job)
        process = JobProcess(command, said=partial(watcher.said, job))
        sweep.job_started()
        return process


class SubmititLauncher(ProcessLauncher):
    """Submits jobs to a cluster by submitit.

    Args:
      cluster: `slurm`, or `local` for processes of this machine.
      parameters: the parameters of submitit's executor, as `slurm_partition`.
      max_parallel: jobs submitted at a time; the cluster may run fewer.
      timeout: longest time of a job in seconds, the queue included; None: no limit.
    """

    def __init__(
        self,
        cluster: str,
        parameters: Mapping[str, object] | None = None,
        max_parallel: int = 64,
        timeout: float | None = None,
    ) -> None:
        super().__init__(max_parallel, timeout)
        self._cluster = cluster
        self._parameters = dict(parameters or {})
        self._executor: Executor | None = None

    def start(self, job: Job, report: str | None, watcher: JobsDisplay) -> Running:
        """Submits a job."""
        assert self._config is not None
        sweep = state.current()
        # With the first job, so that a sweep whose jobs were all done before does not need the cluster.
        if self._executor is None:
            folder = sweep.folder / ".submitit"
            self._executor = cluster.make_executor(self._cluster, folder, self.timeout, self._parameters)
        command = local_command(sweep, job, self._config, parallel=1, report=report)
        watcher.started(job, "submitted")
        return cluster.ClusterJob(self._executor, replace(command, is_shown=False))


class _Sweeper(Sweeper):
    """Base of the sweepers: Hydra's set-up, and the multirun's config in the sweep's folder."""

    def __init__(self) -> None:
        self._config: DictConfig | None = None
        self._context: HydraContext | None = None
        self._launcher: Launcher | None = None

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        """Makes the launcher."""
        self._config = config
        self._context = hydra_context
        self._launcher = Plugins.instance().instantiate_launcher(
            hydra_context=hydra_context, task_function=task_function, config=config
        )

    def sweep(self, arguments: list[str]) -> None:
        """Runs the jobs."""
        del arguments  # the config has them, and the params of a preset too
        assert self._config is not None
        assert self._context is not None
        assert self._launcher is not None
        sweep = state.current()
        OmegaConf.save(self._config, sweep.folder / "multirun.yaml")
        self._run(sweep, self._config, self._context.config_loader, self._launcher)

    def _run(self, sweep: state.Sweep, config: DictConfig, loader: ConfigLoader, launcher: Launcher) -> None:
        raise NotImplementedError


class GridSweeper(_Sweeper):
    """Runs every combination of comma-separated values, except those that are invalid or done already.

    Args:
      params: key to values, as a preset gives them; the command line wins. Read from the config.
    """

    def __init__(self, params: Mapping[str, object] | None = None) -> None:
        super().__init__()
        del params

    def _run(self, sweep: state.Sweep, config: DictConfig, loader: ConfigLoader, launcher: Launcher) -> None:
        parser = OverridesParser.create(config_loader=loader)
        overrides = parser.parse_overrides(state.arguments_of(config))
        jobs: list[Job] = []
        for job_overrides in combinations(overrides):
            job = sweep.plan(loader, job_overrides)
            if job is not None:
                jobs.append(job)
        # Hydra's own launchers take lists of jobs; ours asks for the next job when there is room for it, so that a
        # search can choose it by the outcomes so far.
        if isinstance(launcher, ProcessLauncher):
            launcher.run(_unless_broken(jobs, sweep), sweep, count=len(jobs))
            return
        for batch in _consecutive(jobs):
            launcher.launch([job.overrides for job in batch], initial_job_idx=batch[0].number)


class SearchSweeper(_Sweeper):
    """Lets Optuna choose the jobs; see `runner.cli.sweep.search.Settings` for the arguments."""

    def __init__(self, params: Mapping[str, object] | None = None, **settings: Any) -> None:
        super().__init__()
        del params
        self._settings = settings

    def _run(self, sweep: state.Sweep, config: DictConfig, loader: ConfigLoader, launcher: Launcher) -> None:
        assert isinstance(launcher, ProcessLauncher)
        optuna_search = search.Search(sweep, config, loader, search.Settings(**self._settings))
        sweep.draw_search = optuna_search.draw
        launcher.run(optuna_search.trials(), optuna_search, count=optuna_search.count, report=optuna_search.metric)


def combinations(overrides: Sequence[Override]) -> list[list[str]]:
    """Returns the overrides of each job; the first key that varies changes slowest.

    Raises:
      ConfigError: an interval, which has no list of values.
    """
    choices: dict[str, list[str]] = {}
    for override in overrides:
        key = override.get_key_element()
        if not override.is_sweep_override():
            choices[key] = [str(override.input_line)]
        elif override.is_discrete_sweep():
            choices[key] = [f"{key}={value}" for value in override.sweep_string_iterator()]
        else:
            raise interval_error(override)
    return [list(combination) for combination in itertools.product(*choices.values())]


def _unless_broken(jobs: Sequence[Job], sweep: state.Sweep) -> Iterator[Job]:
    """Yields jobs as long as the sweep's own run can be made."""
    for job in jobs:
        sweep.check()
        yield job


def _consecutive(jobs: Sequence[Job]) -> list[list[Job]]:
    """Returns the jobs in batches of consecutive numbers, since a launcher numbers the jobs of a batch itself."""
    batches: list[list[Job]] = []
    for job in jobs:
        if batches and batches[-1][-1].number + 1 == job.number:
            batches[-1].append(job)
        else:
            batches.append([job])
    return batches

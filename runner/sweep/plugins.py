"""What Hydra plugs in: a launcher of one process a job, and the sweepers of grids and of searches."""

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

from runner.host.late import late
from runner.host.paths import shown
from runner.sweep import state
from runner.sweep.jobs import Job
from runner.sweep.launch import local_command
from runner.sweep.process import LOG_FILE, JobProcess
from runner.sweep.schedule import Running, run_jobs
from runner.sweep.settings import interval_refused

if TYPE_CHECKING:
    from submitit import Executor

    from runner.sweep import cluster, display, search
    from runner.sweep.display import JobsDisplay, Judge
else:
    # with submitit, with Optuna
    cluster = late("runner.sweep.cluster")
    search = late("runner.sweep.search")
    display = late("runner.sweep.display")  # with rich


class ProcessLauncher(Launcher):
    """Runs each job in a process of its own on this machine.

    Args:
      max_parallel: jobs at once; the cores are divided among them.
      timeout: seconds a job may take; null: as long as it likes.
    """

    def __init__(self, max_parallel: int = 1, timeout: float | None = None) -> None:
        self.max_parallel = max_parallel
        self.timeout = timeout
        self._config: DictConfig | None = None

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        """Takes the multirun's config, which is checked; a job runs the command again, not the function."""
        del hydra_context, task_function
        self._config = config

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> Sequence[JobReturn]:
        """Runs jobs that the sweep knows by number; outcomes go to the sweep, so no job's failure raises here."""
        jobs = state.current().ledger.jobs[initial_job_idx : initial_job_idx + len(job_overrides)]
        self.run(iter(jobs), state.current(), count=len(jobs))
        return [JobReturn(overrides=list(job.overrides), status=JobStatus.COMPLETED) for job in jobs]

    def run(self, jobs: Iterator[Job], judge: Judge, *, count: int, report: str | None = None) -> None:
        """Runs jobs as they are asked for.

        Args:
          jobs: is asked for the next one when there is room for it.
          judge: told of each outcome.
          count: how many there may be.
          report: metric whose values the jobs write to a file as they come.

        Raises:
          Interrupted: a signal came; the running jobs were ended.
        """
        sweep = state.current()
        at_once = f", {self.max_parallel} at a time" if 1 < self.max_parallel < count else ""
        if count:
            print(f"{sweep.name}: {count} jobs{at_once}; output: {shown(sweep.folder)}/<job>/{LOG_FILE}", flush=True)
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
    """Hands jobs to a cluster by submitit.

    Args:
      cluster: `slurm`, or `local` for processes of this machine.
      parameters: of submitit's executor, as `slurm_partition`.
      max_parallel: jobs submitted at once; the cluster may run fewer.
      timeout: seconds a job may take, the queue included; null: as long as it likes.
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
        if self._executor is None:
            folder = sweep.folder / ".submitit"
            self._executor = cluster.make_executor(self._cluster, folder, self.timeout, self._parameters)
        command = local_command(sweep, job, self._config, parallel=1, report=report)
        watcher.started(job, "submitted")
        return cluster.ClusterJob(self._executor, replace(command, is_shown=False))


class _Sweeper(Sweeper):
    """What the sweepers share: Hydra's set-up, and the folder with the multirun's config."""

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
        del arguments  # the config has them, and the preset's params besides
        assert self._config is not None
        assert self._context is not None
        assert self._launcher is not None
        sweep = state.current()
        OmegaConf.save(self._config, sweep.folder / "multirun.yaml")
        self._run(sweep, self._config, self._context.config_loader, self._launcher)

    def _run(self, sweep: state.Sweep, config: DictConfig, loader: ConfigLoader, launcher: Launcher) -> None:
        raise NotImplementedError


class GridSweeper(_Sweeper):
    """Runs every combination of comma-separated values, but for those that are refused or done already.

    Args:
      params: key to values, as a preset gives them; the command line wins. Read from the config.
    """

    def __init__(self, params: Mapping[str, object] | None = None) -> None:
        super().__init__()
        del params

    def _run(self, sweep: state.Sweep, config: DictConfig, loader: ConfigLoader, launcher: Launcher) -> None:
        parser = OverridesParser.create(config_loader=loader)
        overrides = parser.parse_overrides(state.arguments_of(config))
        jobs = [job for one in combinations(overrides) if (job := sweep.plan(loader, one)) is not None]
        if isinstance(launcher, ProcessLauncher):
            launcher.run(_unless_broken(jobs, sweep), sweep, count=len(jobs))
            return
        for batch in _neighbors(jobs):
            launcher.launch([job.overrides for job in batch], initial_job_idx=batch[0].number)


class SearchSweeper(_Sweeper):
    """Lets Optuna choose the jobs; see `runner.sweep.search.Settings` for the arguments."""

    def __init__(self, params: Mapping[str, object] | None = None, **settings: Any) -> None:
        super().__init__()
        del params
        self._settings = settings

    def _run(self, sweep: state.Sweep, config: DictConfig, loader: ConfigLoader, launcher: Launcher) -> None:
        assert isinstance(launcher, ProcessLauncher)
        found = search.Search(sweep, config, loader, search.Settings(**self._settings))
        sweep.draw_search = found.draw
        launcher.run(found.trials(), found, count=found.count, report=found.metric)


def combinations(overrides: Sequence[Override]) -> list[list[str]]:
    """Returns the overrides of each job; the first key that varies changes slowest.

    Raises:
      ConfigError: an interval, of which there are no values to run through.
    """
    choices: dict[str, list[str]] = {}
    for one in overrides:
        if not one.is_sweep_override():
            choices[one.get_key_element()] = [str(one.input_line)]
        elif one.is_discrete_sweep():
            key = one.get_key_element()
            choices[key] = [f"{key}={value}" for value in one.sweep_string_iterator()]
        else:
            raise interval_refused(one)
    return [list(each) for each in itertools.product(*choices.values())]


def _unless_broken(jobs: Sequence[Job], sweep: state.Sweep) -> Iterator[Job]:
    """Yields jobs as long as the sweep's own run can be made."""
    for job in jobs:
        sweep.check()
        yield job


def _neighbors(jobs: Sequence[Job]) -> list[list[Job]]:
    """Returns the jobs in batches of consecutive numbers, since a launcher numbers a batch itself."""
    batches: list[list[Job]] = []
    for job in jobs:
        if batches and batches[-1][-1].number + 1 == job.number:
            batches[-1].append(job)
        else:
            batches.append([job])
    return batches

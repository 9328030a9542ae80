"""The sweep that this process runs: its settings, its jobs and its parent run in MLflow."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from hydra.core.config_loader import ConfigLoader
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import DictConfig, OmegaConf, open_dict

from runner.checkpoint.arguments import (
    folder_of,
    key_of,
)
from runner.cli.sweep.jobs import (
    OUTCOME_FILE,
    Job,
    Ledger,
    Outcome,
)
from runner.cli.sweep.process import STOP_FILE
from runner.cli.sweep.resume import checkpoint_overrides
from runner.cli.sweep.settings import check
from runner.cluster import place
from runner.config import texts
from runner.config.compose import compose_job
from runner.config.convert import as_typed, convert_group, resolved
from runner.config.hydra_node import directory
from runner.config.names import short_keys
from runner.config.schema import ClusterConfig, SweepConfig, TrackingConfig
from runner.config.search_path import portable
from runner.errors import ConfigError, DataError, Refused, invalid
from runner.host import folders, session, signals
from runner.host.commands import command_module
from runner.host.late import late
from runner.host.quoting import unquoted
from runner.plan.checks import sweep as checks_sweep
from runner.plan.checks.composed import convert
from runner.task import metrics
from runner.tracking import location
from runner.tracking.hidden import tags_of
from runner.tracking.member import (
    PARENT_FILE,
    VALUES_FILE,
    Values,
    values_of,
    varied_tags,
    write_parent,
)

if TYPE_CHECKING:
    from mlflow.entities import Run

    from runner.cli.runs import records
    from runner.cli.sweep import parent
    from runner.cli.sweep.parent import Parent
else:
    parent = late("runner.cli.sweep.parent")
    records = late("runner.cli.runs.records")

_DIR = "hydra.sweep.dir"
_SUBDIR = "hydra.sweep.subdir"
_SWEEP_PREFIXES = ("sweep.", "sweep/", "hydra.", "hydra/")  # of overrides that concern the sweep, not its jobs
# The parent run is made when the first job has started; without one, as in a resumed sweep whose jobs are all done or
# with another launcher, this long after the sweep's start.
_LONGEST_WAIT_FOR_A_JOB_S = 20.0
_VERDICT_FILE = "verify.json"
_RECORDED_MODULES = ("runner", "runner.verify")  # commands whose jobs are runs in MLflow

Direction = Literal["maximize", "minimize"]
DescribeError = Callable[[Exception, Sequence[str]], str]


@dataclass(frozen=True)
class Shared:
    """What a job needs of its sweep, on whatever machine it runs.

    Attributes:
      module: the command.
      parent_run_id: the sweep's run; None where nothing is recorded.
      varied: keys that the sweep varies.
    """

    module: str
    parent_run_id: str | None
    varied: tuple[str, ...]


class Sweep:
    """The sweep of this process: made by the callback, fed by sweeper and launcher, finished by the command.

    Attributes:
      module: the command.
      settings: the `sweep` group, with its defaults filled in.
      direction: in which the metric is better.
      tracking: the `tracking` group.
      folder: the sweep's.
      varied: keys that vary, with the values as typed.
      ledger: jobs and outcomes.
      finished_runs: MLflow runs of jobs that were done before, by job number.
      draw_search: draws the pictures of a search into a folder and returns their paths; None: the sweep is a grid.
      stop: notes signals.
    """

    def __init__(
        self,
        config: DictConfig,
        describe_error: DescribeError = lambda error, _overrides: str(error),
        meanwhile: Callable[[], object] = lambda: None,
    ) -> None:
        """Reads the settings; nothing is opened yet.

        Args:
          config: as Hydra composed it for the multirun, before any job's overrides.
          describe_error: returns an error of Hydra, OmegaConf or ours as one line, given a job's overrides.
          meanwhile: called when the sweep's run is made, while jobs run; may take its time.

        Raises:
          ConfigError: the `sweep` or the `tracking` group, the launcher or the sweeper is invalid, or the folder has
            files that no sweep wrote.
        """
        self.module = command_module()
        settings = convert_group("sweep", config)
        tracking = convert_group("tracking", config)
        assert isinstance(settings, SweepConfig)
        assert isinstance(tracking, TrackingConfig)
        location.check(tracking)
        self.settings = checks_sweep.settled(settings, convert_group("task", config))
        self.direction: Direction = "minimize"
        if self.settings.direction == metrics.MAXIMIZE:
            self.direction = "maximize"
        self.tracking = tracking
        self.folder = directory(config, _DIR)
        arguments = arguments_of(config)
        check(config, arguments)
        self.varied = varied_values(arguments)
        self._check_resume()
        folders.claim(_DIR, self.folder)
        self.ledger = Ledger()
        self.finished_runs: dict[int, Run] = {}
        self.draw_search: Callable[[Path], list[Path]] | None = None
        self.stop = signals.current()
        self._config = config
        self._describe_error = describe_error
        self._meanwhile = meanwhile
        # The parent run, which a thread makes.
        self._parent: Parent | None = None
        self._opening: threading.Thread | None = None
        self._may_open = threading.Event()
        self._has_no_jobs = False
        self._opening_error: Exception | None = None
        # Runs of the sweep that is resumed, by their values.
        self._finished: dict[Values, Run] = {}
        self._unfinished: dict[Values, Run] = {}

    @property
    def config(self) -> DictConfig:
        """The multirun's config."""
        return self._config

    @property
    def name(self) -> str:
        """The parent run's name."""
        if self.settings.name:
            return self.settings.name
        keys = ", ".join(short_keys(list(self.varied)).values())
        return f"sweep of {keys or 'one job'}"

    @property
    def is_recorded(self) -> bool:
        """Whether the jobs are runs in MLflow."""
        return self.module in _RECORDED_MODULES and self.tracking.name != "none"

    @property
    def parent_file(self) -> Path:
        """Where the jobs of this machine find the parent's id."""
        return self.folder / PARENT_FILE

    def _check_resume(self) -> None:
        resumed = self.settings.resume
        if resumed and not self.is_recorded:
            raise invalid("sweep.resume", resumed, problem="needs a tracked sweep", fix="drop sweep.resume")

    def open(self) -> None:
        """Makes the parent run, or resumes it, and reads which jobs are finished already.

        The first job starts meanwhile: MLflow's import takes as long as a job's own, and a job waits for its parent
        only when it records.

        Raises:
          TrackingError: the store can't be used, where that must be known now.
        """
        if not self.is_recorded:
            return
        self.parent_file.unlink(missing_ok=True)
        self._opening = threading.Thread(target=self._open_parent, name="sweep-parent", daemon=True)
        self._opening.start()
        if self.settings.resume:
            opened = self.parent
            self.check()
            assert opened is not None
            for run in reversed(opened.children()):  # oldest first: the newest run of a job counts
                values = values_of(tags_of(run.data.tags))
                if run.info.status == "FINISHED":
                    self._finished[values] = run
                else:
                    self._unfinished[values] = run

    def job_started(self) -> None:
        """Lets the parent run be made: the first job has started."""
        self._may_open.set()

    def give_up(self) -> None:
        """Says that there will be no job: the parent run is not made, if it is not made by now."""
        self._has_no_jobs = True

    def _open_parent(self) -> None:
        """Makes the parent run; runs in a thread of its own, so that MLflow's import does not delay the first job."""
        self._may_open.wait(_LONGEST_WAIT_FOR_A_JOB_S)
        if self._has_no_jobs:
            return
        arguments = session.current().arguments
        typed = [portable(argument) for argument in arguments if key_of(argument) != "sweep.resume"]
        try:
            self._parent = parent.open_parent(
                self.tracking,
                name=self.name,
                params={key.lstrip("+"): values for key, values in self.varied.items()},
                tags={parent.ARGV_TAG: json.dumps(typed), parent.FOLDER_TAG: str(self.folder)},
                resume=self.settings.resume,
            )
        except Exception as error:
            self._opening_error = error
            write_parent(self.parent_file, error=str(error))
        else:
            write_parent(self.parent_file, run_id=self._parent.run_id, arguments=typed)
        self._meanwhile()

    @property
    def parent(self) -> Parent | None:
        """The sweep's run, once it is made; None where nothing is recorded or it could not be made."""
        if self._opening is not None:
            self._may_open.set()
            self._opening.join()
        return self._parent

    def check(self) -> None:
        """Raises the error of making the parent run, if it is known by now."""
        if self._opening_error is not None:
            raise self._opening_error

    def shared(self) -> Shared:
        """Returns what jobs on other machines need."""
        opened = self.parent
        run_id = None
        if opened is not None:
            run_id = opened.run_id
        return Shared(self.module, run_id, tuple(self.varied))

    def earlier_run(self, job: Job) -> Run | None:
        """Returns the job's run in the sweep that this one resumes; None where it has none."""
        values = values_of(varied_tags(job.varied))
        return self._finished.get(values) or self._unfinished.get(values)

    def plan(self, loader: ConfigLoader, overrides: Sequence[str], number: int | None = None) -> Job | None:
        """Adds a job to the sweep.

        Args:
          loader: composes the job's config.
          overrides: the job's.
          number: the job's; None: the next one.

        Returns:
          The job to run; None where it needs no run, as the ledger says: its config is invalid, or it was done before.
        """
        if number is None:
            number = len(self.ledger.jobs)
        overrides = list(map(texts.kept, overrides))
        own = own_overrides(overrides)
        job = Job(number, own, self.folder / str(number), varied_of(own, tuple(self.varied)))
        try:
            composed = compose_job(loader, self._config, overrides, number)
            job = replace(job, folder=self._job_folder(composed))
            with open_dict(composed):
                del composed["hydra"]
            with expected(self._config.hydra.launcher):
                config = convert(composed)
                check_tasks(self._config.hydra.launcher, config.cluster)
        except Exception as error:  # ours or Hydra's own: the other jobs may be valid
            self.ledger.add(job, Outcome("refused", 2, note=self._describe_error(error, overrides)))
            return None
        # The job's own run, even where the command line has more overrides now: what is added
        # (`trainer.on_nan=continue`) is for the jobs that are left.
        finished = self._finished.get(values_of(varied_tags(job.varied)))
        if finished is not None:
            self.finished_runs[number] = finished
            self.ledger.add(job, Outcome("skipped", note=f"finished before, as run {finished.info.run_id}"))
            return None
        earlier = self.earlier_run(job)
        if earlier is not None:
            checkpoints = folder_of(config.trainer.checkpoint)
            resuming = checkpoint_overrides(earlier, resolved(config, composed), checkpoints)
            job = replace(job, overrides=(*job.overrides, *resuming))
        self.ledger.add(job)
        return job

    def _job_folder(self, composed: DictConfig) -> Path:
        """Returns the folder of a job, without what an earlier sweep in the same folder left there."""
        HydraConfig.instance().set_config(composed)  # the folder's name may refer to the job's number
        folder = directory(composed, _SUBDIR, self.folder)
        folders.claim(_SUBDIR, folder, hold=False)  # the job's own process claims it for as long as it runs
        for name in (OUTCOME_FILE, VALUES_FILE, STOP_FILE):
            (folder / name).unlink(missing_ok=True)
        return folder

    # A sweep is the `schedule.Watcher` of a grid's jobs.

    def should_stop(self, _job: Job) -> bool:
        """Returns False: a grid runs every job to its end."""
        return False

    def ended(self, job: Job, outcome: Outcome) -> None:
        """Takes a job's outcome."""
        self.ledger.outcomes[job.number] = outcome

    def result(self, job: Job, outcome: Outcome) -> str:
        """Returns the result in a job's folder: the metric, or of a verification the verdict; empty: there is none."""
        if outcome.status != "passed":
            return ""
        with suppress(OSError, ValueError, KeyError):
            content = json.loads((job.folder / _VERDICT_FILE).read_text())
            return str(content["verdict"])
        with suppress(DataError):  # the table at the end reports it
            record = records.from_folder(job.folder, job.name, "FINISHED")
            if record is not None and self.settings.metric in record.metrics:
                return f"{self.settings.metric} {record.metrics[self.settings.metric]:.4g}"
        return ""


def begin(config: DictConfig, describe_error: DescribeError, meanwhile: Callable[[], object]) -> None:
    """Starts this process's sweep.

    Args:
      config: the config of the multirun.
      describe_error: see `Sweep`.
      meanwhile: see `Sweep`.

    Raises:
      Refused: it can't start.
    """
    command = session.current()
    try:
        sweep = Sweep(config, describe_error, meanwhile)
        command.sweep = sweep
        sweep.open()
    except Exception as error:
        command.sweep = None
        raise Refused(error) from error


def adopt(shared: Shared) -> None:
    """Stores, in a process that a launcher started elsewhere, which sweep its job belongs to."""
    session.current().sweep = shared


def adopted() -> Shared | None:
    """Returns the sweep of a job that a foreign launcher started here."""
    sweep = session.current().sweep
    return sweep if isinstance(sweep, Shared) else None


def current() -> Sweep:
    """Returns this process's sweep.

    Raises:
      ConfigError: Hydra's callback did not start it.
    """
    sweep = started()
    if sweep is None:
        raise ConfigError("hydra.callbacks.sweep: a multirun needs the callback; leave it as it is")
    return sweep


def started() -> Sweep | None:
    """Returns this process's sweep; None where there is none or it did not start."""
    sweep = session.current().sweep
    return sweep if isinstance(sweep, Sweep) else None


def arguments_of(config: DictConfig) -> list[str]:
    """Returns the task's overrides of a multirun: the sweeper's own params, then the command line's, which win."""
    params = OmegaConf.select(config, "hydra.sweeper.params") or {}
    typed = as_typed(config.hydra.overrides.task)
    typed_keys = set(map(key_of, typed))
    preset: list[str] = []
    for key, value in params.items():
        if key not in typed_keys:
            preset.append(texts.kept(f"{key}={value}"))
    return [*preset, *typed]


def own_overrides(overrides: Sequence[str]) -> tuple[str, ...]:
    """Returns the overrides that are a job's and not Hydra's or its sweep's."""
    return tuple(override for override in overrides if not override.lstrip("+~").startswith(_SWEEP_PREFIXES))


def varied_values(arguments: Sequence[str]) -> dict[str, str]:
    """Returns the keys that a multirun varies, with the values as they were typed."""
    overrides = OverridesParser.create().parse_overrides(list(arguments))
    values: dict[str, str] = {}
    for argument, override in zip(arguments, overrides, strict=True):
        if override.is_sweep_override():
            values[override.get_key_element()] = argument.partition("=")[2]
    return values


def varied_of(overrides: Sequence[str], keys: Sequence[str]) -> dict[str, str]:
    """Returns the values that a job's overrides set for the keys that vary."""
    values: dict[str, str] = {}
    for override in overrides:
        key, _, value = override.partition("=")
        # Quotes are of the override: the text of `run_name='1.10'` is 1.10.
        values[key] = unquoted(value)
    return {key.lstrip("+"): values[key] for key in keys if key in values}


_KEY = "hydra.launcher.parameters"
# submitit takes a parameter of Slurm with the prefix, which wins, or under its own name for every cluster.
_NODES = ("slurm_nodes", "nodes")
_TASKS = ("slurm_ntasks_per_node", "tasks_per_node")


def count(launcher: Mapping[str, Any]) -> int:
    """Returns how many processes a launcher starts per job.

    Args:
      launcher: its config; only that of submitit has a number.
    """
    parameters = launcher.get("parameters") or {}
    return _first_number(parameters, _NODES) * _first_number(parameters, _TASKS)


def _first_number(parameters: Mapping[str, Any], keys: tuple[str, ...]) -> int:
    for key in keys:
        if parameters.get(key):
            return int(parameters[key])
    return 1


def expected(launcher: Mapping[str, Any]) -> AbstractContextManager[None]:
    """Lets the configs of jobs be checked for the processes that their launcher will start."""
    if launcher.get("cluster") == "slurm":
        return place.presumed(count(launcher), "Slurm")
    return nullcontext()


def check_tasks(launcher: Mapping[str, Any], cluster: ClusterConfig) -> None:
    """Checks that the processes that a launcher starts for a job are one run.

    Raises:
      ConfigError: each would run the job by itself, in the same folder.
    """
    processes = count(launcher)
    if processes > 1 and cluster.name != "auto":
        raise invalid(
            _KEY,
            f"{{... {processes} processes per job}}",
            problem=f"with cluster={cluster.name}, each process would run the whole job",
            fix="set cluster=auto, which lets them share the job",
        )

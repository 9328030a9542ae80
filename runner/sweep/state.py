"""The sweep that this process runs: its jobs, its parent run, and its end, which comes however the jobs ended."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from hydra.core.config_loader import ConfigLoader
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import DictConfig, OmegaConf, open_dict

from runner.checks import sweep as checks_sweep
from runner.checks.composed import convert
from runner.config import renamed
from runner.config.compose import compose_job
from runner.config.convert import as_typed, convert_group, resolved
from runner.config.hydra_node import directory
from runner.config.names import short_keys
from runner.config.schema import RunConfig, SweepConfig, TrackingConfig
from runner.config.search_path import portable
from runner.errors import ConfigError, DataError, Refused
from runner.host import folders, session, signals
from runner.host.commands import command_module
from runner.host.late import late
from runner.sweep.identity import code_version, config_hash
from runner.sweep.jobs import OUTCOME_FILE, Job, Ledger, Outcome
from runner.sweep.member import VALUES_FILE, Values, values_of, varied_tags, write_parent
from runner.sweep.process import STOP_FILE
from runner.sweep.resume import checkpoint_overrides
from runner.sweep.settings import check
from runner.sweep.tasks import check_tasks, expected
from runner.task import metrics
from runner.tracking import uri
from runner.tracking.hidden import tags_of
from runner.training.checkpoint.arguments import folder_of, key_of

if TYPE_CHECKING:
    from mlflow.entities import Run

    from runner.compare import records
    from runner.sweep import parent
    from runner.sweep.parent import Parent
else:
    parent = late("runner.sweep.parent")
    records = late("runner.compare.records")

_DIR = "hydra.sweep.dir"
_SUBDIR = "hydra.sweep.subdir"
_OWN = ("sweep.", "sweep/", "hydra.", "hydra/")  # overrides that mean the sweep, not its jobs

Direction = Literal["maximize", "minimize"]
DescribeError = Callable[[Exception, Sequence[str]], str]
_PLANNING_S = 20.0  # longest wait for a first job, which a resumed sweep or another launcher may not have
_VERDICT = "verify.json"
_RECORDED = ("runner", "runner.verify")  # commands whose jobs are runs in MLflow


@dataclass(frozen=True)
class Shared:
    """What a job needs of its sweep, on whatever machine it runs.

    Attributes:
      module: the command.
      parent_run_id: the sweep's run; null where nothing is recorded.
      varied: keys that the sweep varies.
    """

    module: str
    parent_run_id: str | None
    varied: tuple[str, ...]


class Sweep:
    """The sweep of this process: made by the callback, fed by sweeper and launcher, finished by the command."""

    def __init__(
        self,
        config: DictConfig,
        describe_error: DescribeError = lambda error, _overrides: str(error),
        meanwhile: Callable[[], object] = lambda: None,
    ) -> None:
        """Reads what the sweep is; nothing is opened yet.

        Args:
          config: as Hydra composed it for the multirun, before any job's overrides.
          describe_error: returns an error of Hydra, OmegaConf or ours as one line, given a job's overrides.
          meanwhile: called when the sweep's run is made, beside the jobs; may take its time.

        Raises:
          ConfigError: the `sweep` or the `tracking` group, the launcher or the sweeper can't work, or the folder holds
            what is not ours.
        """
        self.module = command_module()
        settings = convert_group("sweep", config)
        tracking = convert_group("tracking", config)
        assert isinstance(settings, SweepConfig)
        assert isinstance(tracking, TrackingConfig)
        uri.check(tracking)
        self.settings = checks_sweep.settled(settings, convert_group("task", config))
        self.direction: Direction = "maximize" if self.settings.direction == metrics.MAXIMIZE else "minimize"
        self.tracking = tracking
        self.folder = directory(config, _DIR)
        arguments = arguments_of(config)
        check(config, arguments)
        self.varied = varied_values(arguments)
        self._check_resume()
        folders.claim(_DIR, self.folder)
        self.ledger = Ledger()
        self._meanwhile = meanwhile
        self._describe_error = describe_error
        self.before: dict[int, Run] = {}  # MLflow runs of jobs that were done before
        self.draw_search: Callable[[Path], list[Path]] | None = None  # a search's own pictures
        self.stop = signals.current()
        self._parent: Parent | None = None
        self._opening: threading.Thread | None = None
        self._may_open = threading.Event()  # so that the import of MLflow does not hold up the first job
        self._given_up = False
        self._broken: Exception | None = None
        self._finished: dict[Values, Run] = {}
        self._unfinished: dict[Values, Run] = {}
        self._covered: dict[str, dict[str, Run]] = {}
        self._master = config

    @property
    def name(self) -> str:
        """The parent run's name."""
        return self.settings.name or f"sweep of {', '.join(short_keys(list(self.varied)).values()) or 'one job'}"

    def _check_resume(self) -> None:
        for key, value in (("resume", self.settings.resume), ("skip_finished", self.settings.skip_finished)):
            if value and not self.is_recorded:
                raise ConfigError(f"sweep.{key}={value}: nothing is recorded here; drop it")

    def open(self) -> None:
        """Makes the parent run, or takes it up again, and looks at what is finished already.

        The first job starts meanwhile: MLflow's import takes as long as a job's own, and a job waits for its parent
        only when it records.

        Raises:
          TrackingError: the store can't be used, where that must be known now.
        """
        resume = self.settings.resume
        skip = self.settings.skip_finished
        if not self.is_recorded:
            return
        self.parent_file.unlink(missing_ok=True)
        self._opening = threading.Thread(target=self._open_parent, name="sweep-parent", daemon=True)
        self._opening.start()
        if resume or skip:
            opened = self.parent
            self.check()
            assert opened is not None
            known = [(values_of(tags_of(run.data.tags)), run) for run in reversed(opened.children())]
            self._finished = {values: run for values, run in known if run.info.status == "FINISHED"}
            self._unfinished = {values: run for values, run in known if values not in self._finished}

    def job_started(self) -> None:
        """Says that the first job is on its way, so that the parent run can be made beside it."""
        self._may_open.set()

    def give_up(self) -> None:
        """Says that there will be no job: a run that is not made by now is not made."""
        self._given_up = True

    def _open_parent(self) -> None:
        self._may_open.wait(_PLANNING_S)
        if self._given_up:
            return
        typed = [portable(one) for one in session.current().arguments if key_of(one) != "sweep.resume"]
        try:
            self._parent = parent.open_parent(
                self.tracking,
                name=self.name,
                params={key.lstrip("+"): values for key, values in self.varied.items()},
                tags={**parent.argv_tags(typed), "runner.sweep.folder": str(self.folder)},
                resume=self.settings.resume,
            )
        except Exception as error:
            self._broken = error
        told = {"run_id": self._parent.run_id} if self._parent else {"error": str(self._broken)}
        write_parent(self.parent_file, **told)
        self._meanwhile()

    @property
    def parent(self) -> Parent | None:
        """The sweep's run, once it is made; None where nothing is recorded or it could not be made."""
        if self._opening is not None:
            self._may_open.set()
            self._opening.join()
        return self._parent

    @property
    def parent_file(self) -> Path:
        """Where the jobs of this machine find the parent's id."""
        return self.folder / "parent.json"

    def check(self) -> None:
        """Raises what kept the parent run from being made, if that is known by now."""
        if self._broken is not None:
            raise self._broken

    @property
    def config(self) -> DictConfig:
        """The multirun's config."""
        return self._master

    @property
    def is_recorded(self) -> bool:
        """Whether the jobs are runs in MLflow."""
        return self.module in _RECORDED and self.tracking.name != "none"

    def shared(self) -> Shared:
        """Returns what jobs on other machines need."""
        return Shared(self.module, self.parent.run_id if self.parent else None, tuple(self.varied))

    def earlier_run(self, job: Job) -> Run | None:
        """Returns the job's run in the sweep that this one resumes; None where it has none."""
        values = values_of(varied_tags(job.varied))
        return self._finished.get(values) or self._unfinished.get(values)

    def plan(self, loader: ConfigLoader, overrides: Sequence[str], number: int | None = None) -> Job | None:
        """Takes a job into the sweep.

        Args:
          loader: composes the job's config.
          overrides: the job's.
          number: the job's; null: the next one.

        Returns:
          The job to run; None where it needs no run, which the ledger says: refused, or done before.
        """
        number = len(self.ledger.jobs) if number is None else number
        kept = own_overrides(overrides)
        job = Job(number, kept, self.folder / str(number), varied_of(kept, tuple(self.varied)))
        try:
            composed = compose_job(loader, self._master, overrides, number)
            HydraConfig.instance().set_config(composed)
            job = replace(job, folder=directory(composed, _SUBDIR, self.folder))
            folders.claim(_SUBDIR, job.folder, hold=False)  # the job's own process claims it for as long as it runs
            for left in (OUTCOME_FILE, VALUES_FILE, STOP_FILE):  # of an earlier sweep in the same folder
                (job.folder / left).unlink(missing_ok=True)
            with open_dict(composed):
                del composed["hydra"]
            with expected(self._master.hydra.launcher):
                config = convert(composed)
                check_tasks(self._master.hydra.launcher, config.cluster)
        except Exception as error:  # ours or Hydra's own: the other jobs may be right
            self.ledger.add(job, Outcome("refused", 2, note=self._describe_error(error, overrides)))
            return None
        found = self._find(job, config, composed)
        if found is not None:
            self.before[number] = found
            self.ledger.add(job, Outcome("skipped", note=f"finished before, as run {found.info.run_id}"))
            return None
        if (earlier := self.earlier_run(job)) is not None:
            more = checkpoint_overrides(earlier, resolved(config, composed), folder_of(config.trainer.checkpoint))
            job = replace(job, overrides=(*job.overrides, *more))
        self.ledger.add(job)
        return job

    def _find(self, job: Job, config: RunConfig, composed: DictConfig) -> Run | None:
        """Returns the finished run that stands for a job.

        In a sweep that is resumed that is the job's own, even where the command line now says more: what is added
        (`trainer.on_nan=continue`) is for the jobs that are left.
        """
        finished = self._finished.get(values_of(varied_tags(job.varied)))
        if finished is not None or not self.settings.skip_finished:
            return finished
        code = code_version(config)
        if code not in self._covered:
            assert self.parent is not None
            self._covered[code] = self.parent.covered(code)
        return self._covered[code].get(config_hash(resolved(config, composed)))

    # What a launcher tells as jobs go on; see `schedule.Watcher`.

    def should_stop(self, _job: Job) -> bool:
        """A grid lets every job run to its end."""
        return False

    def ended(self, job: Job, outcome: Outcome) -> None:
        """Takes a job's outcome."""
        self.ledger.outcomes[job.number] = outcome

    def result(self, job: Job, outcome: Outcome) -> str:
        """Returns the result in a job's folder: its metric, or its verdict if it verifies; empty if there is none."""
        if outcome.status != "passed":
            return ""
        with suppress(OSError, ValueError, KeyError):
            return renamed.verdict(str(json.loads((job.folder / _VERDICT).read_text())["verdict"]))
        with suppress(DataError):  # the table at the end says it
            found = records.from_folder(job.folder, job.name, "FINISHED")
            value = found.metrics.get(self.settings.metric) if found is not None else None
            return "" if value is None else f"{self.settings.metric} {value:.4g}"
        return ""


def begin(config: DictConfig, describe_error: DescribeError, meanwhile: Callable[[], object]) -> None:
    """Starts this process's sweep.

    Args:
      config: of the multirun.
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
    """Returns the task's overrides of a multirun: the sweeper's own params, then the command line's."""
    params = OmegaConf.select(config, "hydra.sweeper.params") or {}
    typed = as_typed(config.hydra.overrides.task)
    keys = {key_of(one) for one in typed}
    return [f"{key}={value}" for key, value in params.items() if key not in keys] + typed


def own_overrides(overrides: Sequence[str]) -> tuple[str, ...]:
    """Returns the overrides that are a job's and not Hydra's or its sweep's."""
    return tuple(one for one in overrides if not one.lstrip("+~").startswith(_OWN))


def varied_values(arguments: Sequence[str]) -> dict[str, str]:
    """Returns the keys that a multirun varies, with the values as they were typed."""
    parsed = OverridesParser.create().parse_overrides(list(arguments))
    pairs = zip(arguments, parsed, strict=True)
    return {one.get_key_element(): text.partition("=")[2] for text, one in pairs if one.is_sweep_override()}


def varied_of(overrides: Sequence[str], keys: Sequence[str]) -> dict[str, str]:
    """Returns the values that a job's overrides give to the keys that vary."""
    given = {one.partition("=")[0]: one.partition("=")[2] for one in overrides}
    return {key.lstrip("+"): given[key] for key in keys if key in given}

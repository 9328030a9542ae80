"""A sweep: its jobs, their outcomes, and its run in MLflow."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from hydra.core.config_loader import ConfigLoader
from mlflow.entities import Run
from omegaconf import DictConfig, OmegaConf, open_dict

from runner.checkpoint import resume, runs
from runner.checkpoint.arguments import folder_of, key_of
from runner.checkpoint.places import Place
from runner.cli.messages import one_line
from runner.cli.sweep.parent import Parent, Values, open_parent, values_of
from runner.cli.sweep.settings import DIR, Settings
from runner.cluster.jobs import Job, Outcome
from runner.cluster.membership import varied_tags
from runner.config import texts
from runner.config.compose import compose_job, directory
from runner.config.convert import resolved
from runner.config.quoting import quoted, unquoted
from runner.errors import ConfigError
from runner.host import folders, session, signals
from runner.plan.checks.run import convert

_SUBDIR = "hydra.sweep.subdir"
_SWEEP_PREFIXES = ("sweep.", "sweep/", "hydra.", "hydra/")  # of overrides that concern the sweep, not its jobs


class Sweep:
    """A sweep of this process: the jobs that are planned, and by number their outcomes and the runs done before.

    Attributes:
      config: as Hydra composed it for the sweep.
      flags: the flags of its jobs' command lines.
      parent: its own run; None where nothing is recorded.
    """

    def __init__(self, settings: Settings, config: DictConfig, loader: ConfigLoader, flags: Sequence[str]) -> None:
        """Claims the sweep's folder, makes its run or resumes it, and reads which jobs are finished already.

        Raises:
          ConfigError: the folder has files that no sweep wrote.
          TrackingError: the store can't be used.
        """
        self.settings = settings
        self.config = config
        self.flags = flags
        self.jobs: list[Job] = []
        self.outcomes: dict[int, Outcome] = {}
        self.finished_runs: dict[int, Run] = {}
        self.parent: Parent | None = None
        self.stop = signals.current()
        self._loader = loader
        # Runs of the sweep that is resumed, by their values.
        self._earlier: dict[Values, Run] = {}
        folders.claim(DIR, settings.folder)
        OmegaConf.save(config, settings.folder / "multirun.yaml")
        if settings.is_recorded:
            arguments = session.current().arguments
            typed = [argument for argument in arguments if key_of(argument) != "sweep.resume"]
            self.parent = open_parent(settings, typed)
            if settings.group.resume:
                for run in reversed(self.parent.children()):  # oldest first: the newest run of a job counts
                    values = values_of(run.data.tags)
                    if values not in self._earlier or not _has_finished(self._earlier[values]):
                        self._earlier[values] = run

    def plan(self, overrides: Sequence[str], number: int) -> Job | None:
        """Adds a job; None if it needs no run, as its outcome says: its config is invalid, or it was done before."""
        overrides = list(map(texts.kept, overrides))
        own = own_overrides(overrides)
        job = Job(number, own, self.settings.folder / str(number), varied_of(own, list(self.settings.varied)))
        self.jobs.append(job)
        try:
            composed = compose_job(self._loader, self.config, overrides, number)
            folder = directory(composed, _SUBDIR, self.settings.folder)
            folders.claim(_SUBDIR, folder, hold=False)  # the job's own process claims it for as long as it runs
            with open_dict(composed):
                del composed["hydra"]
            config = convert(composed)
        except Exception as error:  # ours or Hydra's own: the other jobs may be valid
            self.outcomes[number] = Outcome("refused", note=one_line(error, overrides))
            return None
        earlier = self.earlier_run(job)
        # Done, even where the command line has more overrides now: what is added (`trainer.on_nan=continue`) is for
        # the jobs that are left.
        if earlier is not None and _has_finished(earlier):
            self.finished_runs[number] = earlier
            self.outcomes[number] = Outcome("skipped", note=f"finished before, as run {earlier.info.run_id}")
            return None
        job = replace(job, folder=folder)
        if earlier is not None:
            checkpoints = folder_of(config.trainer.checkpoint.folder)
            content = resolved(composed, config.mesh, config.tracking.uri)
            resuming = _checkpoint_overrides(earlier, content, checkpoints)
            job = replace(job, overrides=(*job.overrides, *resuming))
        self.jobs[-1] = job
        return job

    def earlier_run(self, job: Job) -> Run | None:
        """Returns the job's run in the sweep that this one resumes; None where it has none."""
        return self._earlier.get(values_of(varied_tags(job.varied)))


def _has_finished(run: Run) -> bool:
    return str(run.info.status) == "FINISHED"


def _checkpoint_overrides(run: Run, content: Mapping[str, object], checkpoints: Place) -> list[str]:
    """Returns the overrides with which a job continues from its earlier, unfinished run.

    There are none where that left no checkpoint which a job of this resolved config can continue from.
    """
    try:
        saved_run, _ = runs.find("resume", run.info.run_id, checkpoints)
        resume.check_examples(runs.open_checkpoint("resume", saved_run, None), content, order_only=True)
    except ConfigError:
        return []
    return [f"resume={quoted(str(saved_run.folder))}"]


def own_overrides(overrides: Sequence[str]) -> tuple[str, ...]:
    """Returns the overrides that are a job's and not Hydra's or its sweep's."""
    return tuple(override for override in overrides if not override.lstrip("+~").startswith(_SWEEP_PREFIXES))


def varied_of(overrides: Sequence[str], keys: Sequence[str]) -> dict[str, str]:
    """Returns the values that a job's overrides set for the keys that vary."""
    values: dict[str, str] = {}
    for override in overrides:
        key, _, value = override.partition("=")
        # Quotes are of the override: the text of `run_name='1.10'` is 1.10.
        values[key] = unquoted(value)
    return {key.lstrip("+"): values[key] for key in keys if key in values}

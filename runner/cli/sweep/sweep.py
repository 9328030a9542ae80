"""A sweep: its jobs, their outcomes, and its run in MLflow."""

from __future__ import annotations

import contextlib
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from hydra.core.config_loader import ConfigLoader
from mlflow.entities import Run
from omegaconf import DictConfig, OmegaConf, open_dict

from runner.checkpoint import resume, runs
from runner.checkpoint.arguments import folder_of, key_of, without
from runner.checkpoint.places import Place
from runner.cli.messages import one_line
from runner.cli.sweep.settings import DIR, Settings
from runner.cluster.jobs import Job, Outcome
from runner.cluster.membership import VARIED, varied_tags
from runner.config import texts
from runner.config.compose import compose_job, directory
from runner.config.convert import resolved
from runner.config.quoting import quoted, unquoted
from runner.errors import ConfigError
from runner.host import folders, session, signals
from runner.host.paths import project_root
from runner.layout.mesh import size
from runner.plan.checks.run import convert
from runner.tracking import start
from runner.tracking.base import RunSpec, Status
from runner.tracking.mlflow_setup import reason, warn
from runner.tracking.records import clean_tags
from runner.tracking.start import mark_dead_runs
from runner.tracking.store import KIND_TAG, Store, find_sweep, open_tracking, search

_FOLDER = "sweep"  # of its artifacts
_FINISHED = "FINISHED"
# What identifies a job's run: the keys and values that its sweep varies. Two short names may be alike.
Values = frozenset[tuple[str, str]]
_SUBDIR = "hydra.sweep.subdir"
_SWEEP_PREFIXES = ("sweep.", "sweep/", "hydra.", "hydra/")  # of overrides that concern the sweep, not its jobs


@dataclass(frozen=True)
class Parent:
    """An open parent run: where it is, its id, and the command line that started or resumed it."""

    store: Store
    run_id: str
    command: str

    def children(self) -> list[Run]:
        """Returns the runs of the sweep's jobs, newest first; those whose process is gone are no longer RUNNING."""
        mark_dead_runs(self.store, lambda _line: None)
        return search(self.store, [self.store.experiment_id], f"tags.mlflow.parentRunId = '{self.run_id}'")

    def finish(
        self, status: Status, tags: Mapping[str, str], metrics: Mapping[str, float], files: Sequence[Path]
    ) -> None:
        """Stores results and status; an error is a warning."""
        client = self.store.client
        try:
            for path in files:
                client.log_artifact(self.run_id, str(path), _FOLDER)
            for key, value in metrics.items():
                client.log_metric(self.run_id, key, value)
            for tag, content in clean_tags(tags).items():
                client.set_tag(self.run_id, tag, content)
        except Exception as error:
            warn(f"the sweep's results are not all stored: {reason(error)}")
        try:
            client.set_terminated(self.run_id, status)
        except Exception as error:
            warn(f"the sweep's status is not stored: {reason(error)}")


def values_of(tags: Mapping[str, str]) -> Values:
    """Returns what identifies a run in its sweep, given its tags, stored or not."""
    return frozenset(clean_tags({key: value for key, value in tags.items() if key.startswith(VARIED)}).items())


class Sweep:
    """A sweep of this process: the jobs that are planned, and by number their outcomes and the runs done before.

    Attributes:
      config: as Hydra composed it for the sweep.
      flags: the flags of its jobs' command lines.
      parent: its own run; None where nothing is recorded.
    """

    def __init__(self, settings: Settings, config: DictConfig, loader: ConfigLoader, flags: Sequence[str]) -> None:
        """Claims the sweep's folder."""
        self.settings = settings
        self.config = config
        self.flags = flags
        self.jobs: list[Job] = []
        self.outcomes: dict[int, Outcome] = {}
        # Of this process: those of a search that is resumed ended earlier.
        self.failed: list[Job] = []
        self.finished_runs: dict[int, Run] = {}
        self.parent: Parent | None = None
        self.stop = signals.current()
        self._loader = loader
        # Runs of the sweep that is resumed, by their values.
        self._earlier: dict[Values, Run] = {}
        folders.claim(DIR, settings.folder)
        OmegaConf.save(config, settings.folder / "multirun.yaml")

    def record(self) -> None:
        """Makes the sweep's run, or resumes the one of `sweep.resume` and reads which jobs are finished already."""
        settings = self.settings
        if self.parent is not None or not settings.is_recorded:
            return
        store = open_tracking(settings.tracking)
        with contextlib.suppress(Exception):  # housekeeping must not stop a sweep
            mark_dead_runs(store, warn)
        spec = RunSpec(settings.name, settings.varied, {KIND_TAG: "sweep", **settings.tracking.tags})
        typed = without(session.current().arguments, ["sweep.resume"])
        command = shlex.join(["python", "-m", settings.module, *typed])
        if settings.group.resume is None:
            run_id = start.create(store, replace(spec, description=f"`{command}`"), project_root())
            self.parent = Parent(store, run_id, command)
            return
        run_id = find_sweep(store, settings.group.resume, [store.experiment_id]).info.run_id
        # Without params: those of the first start can't be changed.
        start.resume(store, run_id, replace(spec, params={}))
        self.parent = Parent(store, run_id, command)
        for run in reversed(self.parent.children()):  # oldest first: the newest run of a job counts
            values = values_of(run.data.tags)
            if values not in self._earlier or self._earlier[values].info.status != _FINISHED:
                self._earlier[values] = run

    def add(self, overrides: Sequence[str], number: int) -> Job:
        """Adds a job as the report lists it; its config is not composed, and its folder is not claimed."""
        # Those that are a job's and not Hydra's or its sweep's.
        own = tuple(one for one in map(texts.kept, overrides) if not one.lstrip("+~").startswith(_SWEEP_PREFIXES))
        job = Job(number, own, self.settings.folder / str(number), varied_of(own, list(self.settings.varied)))
        self.jobs.append(job)
        return job

    def plan(self, overrides: Sequence[str], number: int) -> Job | None:
        """Adds a job; None if it needs no run, as its outcome says: its config is invalid, or it was done before."""
        overrides = list(map(texts.kept, overrides))
        job = self.add(overrides, number)
        try:
            composed = compose_job(self._loader, self.config, overrides, number)
            folder = directory(composed, _SUBDIR, self.settings.folder)
            folders.claim(_SUBDIR, folder, hold=False)  # the job's own process claims it for as long as it runs
            with open_dict(composed):
                del composed["hydra"]
            config = convert(composed)
        except Exception as error:  # ours or Hydra's own: the other jobs may be valid
            self.outcomes[number] = Outcome("refused", note=one_line(error, overrides))
            self.failed.append(job)
            return None
        earlier = self._earlier.get(values_of(varied_tags(job.varied)))
        # Done, even where the command line has more overrides now: what is added (`trainer.on_nan=continue`) is for
        # the jobs that are left.
        if earlier is not None and earlier.info.status == _FINISHED:
            self.finished_runs[number] = earlier
            self.outcomes[number] = Outcome("skipped", note=f"finished before, as run {earlier.info.run_id}")
            return None
        gpus = size(config.mesh.axes) if config.mesh.device == "gpu" else 0
        job = replace(job, folder=folder, gpus=gpus)
        if earlier is not None:
            checkpoints = folder_of(config.trainer.checkpoint.folder)
            content = resolved(composed, config.mesh, config.tracking.uri)
            resuming = _checkpoint_overrides(earlier, content, checkpoints)
            job = replace(job, overrides=(*job.overrides, *resuming))
        self.jobs[-1] = job
        return job


def _checkpoint_overrides(run: Run, content: Mapping[str, object], checkpoints: Place) -> list[str]:
    """Returns the overrides that continue an unfinished run; none: it left no checkpoint for this resolved config."""
    try:
        saved_run, _ = runs.find("resume", run.info.run_id, checkpoints)
        resume.check_examples(runs.open_checkpoint("resume", saved_run, None), content, order_only=True)
    except ConfigError:
        return []
    return [f"resume={quoted(str(saved_run.folder))}"]


def varied_of(overrides: Sequence[str], keys: Sequence[str]) -> dict[str, str]:
    """Returns the values that a job's overrides set for the keys that vary."""
    values: dict[str, str] = {}
    for override in overrides:
        # Quotes are of the override: the text of `run_name='1.10'` is 1.10.
        values[key_of(override)] = unquoted(override.partition("=")[2])
    return {key: values[key] for key in keys if key in values}

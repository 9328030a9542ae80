"""What a training run needs of checkpoints: where it goes on, what it has logged, and where it saves."""

from __future__ import annotations

import platform
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hydra.core.hydra_config import HydraConfig

from runner.config.convert import as_typed
from runner.config.schema import RunConfig
from runner.config.typed import composed_with
from runner.data.base import Dataset, Encoding
from runner.engine import registry
from runner.engine.base import Engine
from runner.errors import ConfigError
from runner.host.outputs import warn
from runner.host.versions import installed
from runner.processes import requeue
from runner.processes.team import current
from runner.task.base import LOSS, Task
from runner.tracking import Tracker
from runner.training import stopping
from runner.training.checkpoint import best, kept, lineage, runs, storage
from runner.training.checkpoint.arguments import KEYS, folder_of, key_of
from runner.training.checkpoint.manifest import CONSTANTS, DIGEST, ENCODING
from runner.training.checkpoint.resume import check_order
from runner.training.checkpoint.runs import SavedRun
from runner.training.checkpoint.saver import CheckpointSaver, Saver, take_state
from runner.training.checkpoint.storage import Checkpoint
from runner.training.past import from_arrays
from runner.training.stopping import Objective

_LIBRARIES = ("runner", *registry.distributions(), "numpy")
_TAG = "runner.checkpoints"
_ORIGIN = "runner.branched_from"
_PLANNED = ("engine", "mesh", "layout", "model", "optimizer", "dataset", "task")  # groups that a plan comes from


@dataclass(frozen=True)
class Previous:
    """A run that goes on, or that another one begins with, and its checkpoint.

    Attributes:
      run: as it was left.
      checkpoint: of it.
      branches: whether a new run begins with the checkpoint, and this one stays as it is.
    """

    run: SavedRun
    checkpoint: Checkpoint
    branches: bool = False

    @property
    def resumed_run_id(self) -> str | None:
        """The id in the tracking store of the run that goes on; null for a new one."""
        return None if self.branches else self.run.run_id

    @property
    def encoding(self) -> Encoding | None:
        """How the run's data became numbers; null where it needed nothing of the kind, or is of an earlier version."""
        recorded = self.checkpoint.about.get(ENCODING)
        return None if recorded is None else Encoding.from_json(recorded)

    @property
    def constants(self) -> Mapping[str, Any] | None:
        """What the run's task computed from its training data; null of an earlier version."""
        found: Mapping[str, Any] | None = self.checkpoint.about.get(CONSTANTS)
        return found

    @property
    def goes_back(self) -> bool:
        """Whether the run does steps again that it has points of: it goes on from before its end, or once did."""
        found = storage.lineages(self.run.folder)
        return not self.branches and bool(lineage.goes_on(found, self.checkpoint.step))

    def goes_on(self, per_epoch: int, epochs: int) -> str:
        """Returns in a line where training goes on.

        Args:
          per_epoch: steps of an epoch.
          epochs: of the whole run.
        """
        step = self.checkpoint.step
        epoch = min(step // per_epoch, epochs - 1)
        done = step - epoch * per_epoch
        within = f", with {done:,} of its {per_epoch:,} steps done" if done else ""
        begun = f"from run {self.run.run}" if self.branches else f"with run {self.run.run}"
        return f"goes on {begun} after step {step:,}: epoch {epoch + 1} of {epochs}{within}"

    def says(self) -> list[str]:
        """Returns in lines what becomes of the run's other checkpoints; nothing where it goes on from its last."""
        name = f"{self.run.run}@{self.checkpoint.step}"
        if self.branches:
            return [f"branch={name}: a new run begins with that state; run {self.run.run} stays as it is"]
        after = kept.after(self.run.folder, self.checkpoint.step)
        if not after:
            return []
        record = best.read(self.run.folder)
        steps = ", ".join(
            f"{step:,} (the best)" if record and record["step"] == step else f"{step:,}" for step in after
        )
        return [
            f"resume={name}: checkpoints of steps {steps} belong to what this run did after that; each goes when "
            f"the run has come as far again and saved, the best when there is a new one (branch={name} keeps all)"
        ]


def open_previous(config: RunConfig, content: Mapping[str, Any], held: ExitStack) -> Previous | None:
    """Opens and checks the checkpoint that a run goes on from, or begins with; None for a new run.

    Args:
      config: checked; its `resume` or `branch` is what `arguments.expand` made of the command line.
      content: the config, resolved.
      held: is given a lock on the run that goes on, so that no other process goes on with it.

    Raises:
      ConfigError: it is damaged, of a newer format, still running, or its examples are other ones.
    """
    key, wanted = ("resume", config.resume) if config.branch is None else ("branch", config.branch)
    if wanted is None:
        return None
    place = folder_of(config.trainer.checkpoint)
    team = current()
    opened: list[tuple[SavedRun, Checkpoint]] = []

    def find() -> list[Any]:
        run, step = runs.find(key, wanted, place)
        if key == "resume":
            held.enter_context(runs.held(key, run))
            run, step = runs.find(key, wanted, place)  # as it is now that no other process can change it
            runs.check_not_running(key, run)
        opened.append((run, runs.open_checkpoint(key, run, step)))
        return [str(run.folder), dict(run.record), str(opened[0][1].folder)]

    folder, record, found = team.broadcast("the run that goes on", find)
    run, checkpoint = opened[0] if opened else (SavedRun(Path(folder), record), Checkpoint(Path(found), trusted=True))
    check_order(checkpoint, content)
    return Previous(run, checkpoint, branches=key == "branch")


def check_unfinished(config: RunConfig, before: Previous | None, total: int, task: Task) -> None:
    """Refuses to go on with a run of other metrics, that has done and recorded all its steps, or was stopped early.

    Args:
      config: checked, whose metrics are named.
      before: the run.
      total: steps of the config's whole training.
      task: the config's.

    Raises:
      ConfigError: it is such a run.
    """
    if before is None:
        return
    key = "branch" if before.branches else "resume"
    past = from_arrays(before.checkpoint.history())
    evaluated = past.evaluations[-1][1].metrics if past.evaluations else task.directions
    if missing := sorted(({LOSS, *task.step_metrics} - {*past.names}) | ({*task.directions} - {*evaluated})):
        raise ConfigError(
            f"{key}={before.run.run}: the run has no metric {missing[0]}, which this config's task has; "
            "set task as the run had it"
        )
    if not (before.branches or before.run.record.get("finished")):
        return
    if before.checkpoint.step >= total:
        raise ConfigError(
            f"{key}={before.run.run}: the run has done its {before.checkpoint.step:,} steps; "
            f"set trainer.epochs={config.trainer.epochs + 1} or more to train on"
        )
    early = config.trainer.early_stopping
    reason = stopping.reason(early, stopping.objective(early.metric, task.directions), past.evaluations)
    if reason is not None:
        raise ConfigError(
            f"{key}={before.run.run}: the run has ended by {reason}; set a larger "
            "trainer.early_stopping.patience, or trainer.early_stopping.metric=null, to train on"
        )


class NewPoints:
    """Logs points that a run does not have: those after the last checkpoint come twice, and its past is logged again.

    So is what was logged before the checkpoint and was still on its way when the process died. A run that went back to
    a checkpoint, after a loss that was not finite or as it was told, has points of steps that it did again: there a
    point counts as logged only where its value is the same.
    """

    def __init__(self, tracker: Tracker, checkpoint: Checkpoint | None, *, goes_back: bool = False) -> None:
        """Reads what the run has.

        Args:
          tracker: of the run.
          checkpoint: where it goes on; null: a new run.
          goes_back: whether that is, or was, before its end.
        """
        self._tracker = tracker
        self._before = checkpoint
        self._stored = tracker.logged() if checkpoint is not None else {}
        restores = from_arrays(checkpoint.history()).restores if checkpoint is not None else []
        again = [step for points in self._stored.values() for step in points] if goes_back else []
        self._done_again = max([*(restore.bad for restore in restores), *again], default=0)

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Logs the values that the run has no point of at this step."""
        new = {key: value for key, value in values.items() if not self._has(step, key, value)}
        if new:
            self._tracker.log_metrics(step, new)

    def _has(self, step: int, key: str, value: float) -> bool:
        stored = self._stored.get(key, {})
        if step not in stored:
            return False
        return step > self._done_again or stored[step] == value

    def forget(self, step: int) -> None:
        """Takes what lies after a step for not logged: the run does it again."""
        self._stored = {
            key: {at: value for at, value in points.items() if at <= step} for key, points in self._stored.items()
        }

    def log_changed(self, step: int, values: Mapping[str, float], content: Mapping[str, Any]) -> None:
        """Logs the values that are not the last ones of their metric.

        Args:
          step: training steps done.
          values: what the config alone decides.
          content: the config, resolved.
        """
        last = {key: points[max(points)] for key, points in self._stored.items() if points}
        lost = {key: value for key, value in values.items() if key not in last}
        self.log(0 if self._is_planned_alike(content) else step, lost)  # on their way when the process died
        self.log(step, {key: value for key, value in values.items() if key in last and last[key] != value})

    def _is_planned_alike(self, content: Mapping[str, Any]) -> bool:
        before = self._before.about["config"] if self._before is not None else content
        return all(before.get(group) == content.get(group) for group in _PLANNED)


@contextmanager
def saving(
    config: RunConfig,
    content: Mapping[str, Any],
    engine: Engine,
    tracker: Tracker,
    folder: Path,
    before: Previous | None,
    recorded: ExitStack,
    held: ExitStack,
    *,
    goal: Objective | None,
    data: Dataset,
    constants: Mapping[str, Any],
) -> Iterator[Saver]:
    """Yields what saves the run's state.

    Args:
      config: checked.
      content: the config, resolved.
      engine: built.
      tracker: of the run, which gets a tag with the place of its checkpoints.
      folder: the run's own.
      before: where it goes on.
      recorded: to be closed when the tracker has the run as finished. Until then a run that is killed can go on, to
        record what it has not.
      held: is given a lock on a new run, so that no other process goes on with it.
      goal: what the best checkpoint is the best by; null: none is kept for that.
      data: what is trained on; how it became numbers is what evaluations of other data need.
      constants: the task's, likewise.

    Raises:
      OSError: the folder can't be written.
    """
    wanted = config.trainer.checkpoint
    team = current()
    if not wanted.enabled:
        yield Saver()
        return
    resumed = before.run if before and not before.branches else None
    place = resumed.folder.parent if resumed else folder_of(wanted)
    typed = as_typed(HydraConfig.get().overrides.task)
    job = requeue.job() if config.cluster.requeue else None
    overrides = [*composed_with(), *(one for one in typed if key_of(one) not in KEYS)]
    note = job.note(typed) if job else None

    branch = f"{before.run.run}@{before.checkpoint.step}" if before and before.branches else None
    before_it = resumed.record if resumed else {"origin": branch} if branch else {}
    lasting = {key: before_it[key] for key in ("origin", "kept") if key in before_it}

    def register() -> list[Any]:
        run = resumed.run if resumed else tracker.run_id or runs.free_name(place, folder.name)
        tracked = resumed.run_id is not None if resumed else tracker.run_id is not None
        if resumed is None:
            held.enter_context(runs.held("trainer.checkpoint.folder", SavedRun(place / run, {"run": place})))
        name = resumed.folder.name if resumed else None
        made = runs.register(place, run, tracked=tracked, overrides=overrides, name=name, job=note, lasting=lasting)
        return [str(made.folder), dict(made.record)]

    where, record = team.broadcast("the run's checkpoints", register)
    saved = SavedRun(Path(where), record)
    run = saved.run
    origin = {_ORIGIN: branch} if branch else {}
    tracker.set_tags({_TAG: str(saved.folder), **origin})
    about = {"run": run, "config": content, "seed": config.trainer.seed, "versions": versions()}
    about |= {DIGEST: data.digest, ENCODING: data.encoding.to_json(), CONSTANTS: dict(constants)}
    start = before.checkpoint.step if before else 0
    take = take_state(engine, about)
    say = warn if team.is_first else _say_nothing
    saver = CheckpointSaver(wanted, saved.folder, take, say, start, goal, team)
    finished = False
    try:
        yield saver
        finished = True
    finally:
        saver.close()
        if not team.is_first:
            pass
        elif finished:
            recorded.callback(_end, saved, finished=True)
        else:
            _end(saved, finished=False)


def _say_nothing(line: str) -> None:
    """Process 0 says it."""
    del line


def _end(run: SavedRun, *, finished: bool) -> None:
    """Notes that the run has ended; that is no reason to fail, as others see that its process has gone."""
    try:
        runs.end(run, finished=finished)
    except OSError as error:
        warn(f"the end of the run is not noted in {run.folder}: {error}")


def versions() -> dict[str, str]:
    """Returns the versions of Python and of the libraries that compute."""
    return {"python": platform.python_version(), **installed(_LIBRARIES)}

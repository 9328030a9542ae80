"""Resuming: opens the run and the checkpoint, checks that the config can continue from it, and loads the state.

The order of a resume, with the reason for each place:

1. `open_previous`, before anything else of the run: the run is found, locked, found once more under the lock, checked
   for a process that still runs it, and its checkpoint is verified byte by byte. Until the lock is taken, another
   process may still change the run. All of it takes no framework, so an error is reported within a second.
2. `check_order`, in the same call: the config must see the same examples in the same order, and `check_examples` in
   the same form.
3. `check_data`, when the data is loaded: its SHA-256 is what the checkpoint records.
4. `check_unfinished`, when the task is known: the run has the task's metrics, and steps are left to train. Up to here
   nothing was changed, and the run's record in the tracking store was not opened; there, a rejected config would show
   as a failed run.
5. `load`, when the engine is built: every variable must agree in path, shape and precision before the first is
   assigned.
6. `recovery.saving` writes the run's record again, with this process in it, when everything else is ready.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from runner.checkpoint import (
    index,
    named,
    runs,
    stopping,
    storage,
)
from runner.checkpoint.arguments import (
    folder_of,
    recorded_overrides,
)
from runner.checkpoint.files import DamagedError
from runner.checkpoint.manifest import (
    CONSTANTS,
    DIGEST,
    ENCODING,
)
from runner.checkpoint.metric_history import (
    from_arrays,
    measured,
)
from runner.checkpoint.reading import Checkpoint
from runner.checkpoint.runs import (
    WENT_BACK,
    SavedRun,
)
from runner.cluster.team import current
from runner.config.convert import flatten
from runner.config.schema import AUTO, RunConfig
from runner.data.base import Encoding
from runner.engine.base import Engine
from runner.engine.lengths import RunLength
from runner.errors import EXIT_DONE, ConfigError, invalid, shown
from runner.host.stores.urls import place
from runner.layout.paths import (
    is_ema,
    is_variable,
    owner_of,
)
from runner.task.base import LOSS, SCALED, Task

# The keys that decide which examples a step sees. A resumed run must see those that it has not seen.
_ORDER = (
    "dataset.name",
    "dataset._target_",
    "dataset.features",
    "dataset.builder",
    "dataset.train",
    "dataset.holdout",
    "dataset.batch_size",
    "dataset.shuffle",
    "dataset.remainder",
    "dataset.image_size",
    "trainer.seed",
    "trainer.steps_per_epoch",
    "trainer.limit_train_batches",
    "trainer.overfit_batches",
)

# The keys that decide what an example is. A branch may change them.
_EXAMPLE = ("dataset.standardize", "dataset.sequence_length", "dataset.documents", "dataset.pack")

# If this key is null and the data has no test split, a share of the train split is taken for it.
_SPLITS_TRAIN = "dataset.test"

# The narrower dtype of a state; `engine.state=bfloat16` would round a checkpoint of float32 numbers.
_NARROW = "bfloat16"


@dataclass(frozen=True)
class Previous:
    """A recorded run and its checkpoint, from which this process resumes, branches, evaluates or exports.

    Attributes:
      run: its record, as it was left.
      checkpoint: of the run.
      branches: whether a new run begins with the checkpoint, and this run stays unchanged.
    """

    run: SavedRun
    checkpoint: Checkpoint
    branches: bool = False

    @cached_property
    def later_steps(self) -> list[int]:
        """The steps of the run's checkpoints after this one, before a run that continues removes them."""
        return [step for step in storage.steps(self.run.folder) if step > self.checkpoint.step]

    @property
    def resumed_run_id(self) -> str | None:
        """The id in the tracking store of the run that continues; None for a new one."""
        return None if self.branches else self.run.tracking_id

    @property
    def encoding(self) -> Encoding | None:
        """How the run's data became numbers; None if it needed no encoding."""
        recorded = self.checkpoint.about.get(ENCODING)
        if recorded is None:
            return None
        return Encoding.from_json(recorded)

    @property
    def constants(self) -> Mapping[str, Any] | None:
        """What the run's task computed from its training data and decided by its model."""
        # Versions that recorded no scaling divided all images by 255.
        constants: Mapping[str, Any] = {SCALED: [1.0], **self.checkpoint.about.get(CONSTANTS, {})}
        return constants

    @property
    def repeats_steps(self) -> bool:
        """Whether the run trains steps again that it has logged: it went back, now or at an earlier resume."""
        if self.branches:
            return False
        return bool(self.run.record.get(WENT_BACK) or self.later_steps)

    def describe_position(self, length: RunLength) -> str:
        """Returns one line that says where training continues in a run of this length."""
        verb = "Starting from run" if self.branches else "Resuming run"
        return f"{verb} {self.run.id} at {length.describe_position(self.checkpoint.step)}"

    def describe_other_checkpoints(self) -> list[str]:
        """Returns lines that say what happens to the run's later checkpoints; empty if it continues from its last."""
        name = f"{self.run.id}@{self.checkpoint.step}"
        if self.branches:
            return [f"branch={name}: a new run begins with that state; run {self.run.id} stays unchanged"]
        if not self.later_steps:
            return []
        best_step = self._best_step()
        names: list[str] = []
        for step in self.later_steps:
            is_best = step == best_step
            mark = " (the best)" if is_best else ""
            names.append(f"{step:,}{mark}")
        return [
            f"resume={name}: the checkpoints of steps {', '.join(names)} are from after that step and are removed "
            f"(branch={name} keeps all)"
        ]

    def _best_step(self) -> int | None:
        """Returns the step of the best checkpoint; None if there is none, or its record is damaged."""
        try:
            best = index.read_best(self.run.folder)
        except DamagedError:
            # A run that continues from a step that was named needs no best checkpoint.
            return None
        return None if best is None else best["step"]


def open_previous(config: RunConfig, content: Mapping[str, Any], locks: ExitStack) -> Previous | None:
    """Opens and checks the checkpoint that a run resumes or branches from; None for a new run.

    Args:
      config: checked; its `resume` or `branch` is what `arguments.expand` made of the command line.
      content: the config, resolved.
      locks: gets a lock on the resumed run, so that no other process resumes it too.

    Raises:
      ConfigError: the checkpoint is damaged or of a newer format, the run is still running, or it saw other examples.
    """
    if config.resume == AUTO:
        previous = _open_named(config, locks)
        if previous is not None:
            check_order(previous.checkpoint, content)
            check_examples(previous.checkpoint, content)
        return previous
    if config.branch is not None:
        key = "branch"
        reference: str | None = config.branch
    else:
        key = "resume"
        reference = config.resume
    if reference is None:
        return None
    root = folder_of(config.trainer.checkpoint)
    opened: list[Previous] = []

    def find() -> list[Any]:
        run, step = runs.find(key, reference, root)
        if key == "resume":
            locks.enter_context(runs.locked(key, run))
            # Once more: another process may have changed the run before the lock was taken.
            run, step = runs.find(key, reference, root)
            runs.check_not_running(key, run)
        checkpoint = runs.open_checkpoint(key, run, step)
        opened.append(Previous(run, checkpoint, branches=key == "branch"))
        # Values of JSON only: that is what a broadcast can send.
        return [str(run.folder), dict(run.record), str(checkpoint.folder)]

    # Process 0 finds and verifies; the others open the same checkpoint without hashing it again.
    folder, record, checkpoint_folder = current().broadcast("the resumed run", find)
    if opened:
        previous = opened[0]
    else:
        checkpoint = Checkpoint(place(checkpoint_folder), trusted=True)
        previous = Previous(SavedRun(place(folder), record), checkpoint, branches=key == "branch")
    check_order(previous.checkpoint, content)
    if not previous.branches:
        check_examples(previous.checkpoint, content)
    return previous


def _open_named(config: RunConfig, locks: ExitStack) -> Previous | None:
    """Opens a named run at its last whole checkpoint; None: it has none, so it trains from the start.

    Raises:
      ConfigError: see `named.take` and `named.last_whole`.
      SystemExit: the same command has finished the run.
    """
    opened: list[tuple[SavedRun, Checkpoint | None]] = []

    def find() -> list[Any]:
        run = named.take(config, locks, runs.print_line)
        if run is None:
            return ["", {}, "", False]
        has_finished = bool(run.record.get("finished")) and run.record["overrides"] == recorded_overrides()
        if has_finished:
            runs.print_line(f"name={config.name}: the run has finished; its checkpoints are in {run.folder}")
            return ["", {}, "", True]
        checkpoint = named.last_whole(run, runs.print_line)
        opened.append((run, checkpoint))
        return [str(run.folder), dict(run.record), "" if checkpoint is None else str(checkpoint.folder), False]

    folder, record, checkpoint_folder, has_finished = current().broadcast("the named run", find)
    if has_finished:
        # What started this command (a job, an array, a start script) is to see that nothing is left to do.
        raise SystemExit(EXIT_DONE)
    if not folder:
        return None
    if opened:
        run, checkpoint = opened[0]
    else:
        run = SavedRun(place(folder), record)
        checkpoint = Checkpoint(place(checkpoint_folder), trusted=True) if checkpoint_folder else None
    return None if checkpoint is None else Previous(run, checkpoint)


def check_experiment(config: RunConfig, previous: Previous | None) -> None:
    """Checks that a run that continues stays in its MLflow experiment: MLflow moves no run to another.

    Args:
      config: checked.
      previous: that the run continues from; None: it is a new one.

    Raises:
      ConfigError: the config names another experiment.
    """
    if previous is None or previous.resumed_run_id is None or config.tracking.name == "none":
        return
    experiment = config.tracking.experiment
    before = dict(flatten(previous.checkpoint.about["config"])).get("tracking.experiment", experiment)
    if before != experiment:
        raise invalid(
            "tracking.experiment",
            experiment,
            problem=f"run {previous.run.id} is in the experiment {before}, and MLflow can't move it",
            fix=f"set tracking.experiment={before}, or start a new run with branch={previous.run.id}",
        )


def check_order(checkpoint: Checkpoint, content: Mapping[str, Any]) -> None:
    """Checks that a config continues with the same examples in the same order.

    Args:
      checkpoint: that the run continues from.
      content: the resolved config.

    Raises:
      ConfigError: names the first key that differs.
    """
    before = dict(flatten(checkpoint.about["config"]))
    now = dict(flatten(content))
    differing = [key for key in _ORDER if before.get(key) != now.get(key)]
    if (before.get(_SPLITS_TRAIN, "") is None) != (now.get(_SPLITS_TRAIN, "") is None):
        differing.append(_SPLITS_TRAIN)
    if differing:
        key = differing[0]
        trained = f"{key}={_shown(before.get(key))}"
        raise invalid(
            key,
            now.get(key),
            problem=f"the run has trained with {trained}, which decides the order of its examples",
            fix=f"leave out {key}, or start a new run",
        )


def _shown(value: object) -> object:
    return "null" if value is None else value


def check_examples(checkpoint: Checkpoint, content: Mapping[str, Any]) -> None:
    """Checks that a run that continues makes the same examples of its data.

    Args:
      checkpoint: that the run continues from.
      content: the resolved config.

    Raises:
      ConfigError: names the first key that differs.
    """
    before = dict(flatten(checkpoint.about["config"]))
    now = dict(flatten(content))
    for key in _EXAMPLE:
        if before.get(key, now.get(key)) != now.get(key):
            raise invalid(
                key,
                now.get(key),
                problem=f"the run has trained on examples with {key}={shown(before[key])}",
                fix=f"leave out {key}, or start a new run",
            )


def check_data(checkpoint: Checkpoint, digest: str) -> None:
    """Checks that a run continues with the data that it began with.

    Args:
      checkpoint: that the run continues from.
      digest: `Dataset.digest` of the config's data.

    Raises:
      ConfigError: the data has changed.
    """
    if checkpoint.about.get(DIGEST, digest) != digest:
        raise ConfigError(
            f"resume: the data has changed since run {checkpoint.about['run']} began (SHA-256 mismatch); restore the "
            "files, or start a new run on the new data with branch=<run id> in place of resume"
        )


def check_unfinished(config: RunConfig, previous: Previous | None, length: RunLength, task: Task) -> None:
    """Rejects a run with other metrics, and one that has nothing left to train.

    A run that has done all its steps without recording its results is accepted: it evaluates and records.

    Args:
      config: checked, with the names of its metrics.
      previous: the run; None: a new one.
      length: of the config's whole run.
      task: the config's.

    Raises:
      ConfigError: the run lacks a metric, has finished, or was stopped early.
    """
    if previous is None:
        return
    key = "branch" if previous.branches else "resume"
    name = f"{key}={previous.run.id}"
    history = from_arrays(previous.checkpoint.history())
    evaluated = history.evaluations[-1][1].metrics if history.evaluations else task.directions
    missing = {LOSS, *task.step_metrics} - set(history.names)
    missing |= set(task.directions) - set(evaluated)
    if missing:
        raise ConfigError(
            f"{name}: the run has no metric {min(missing)}, which the task of this config needs; set task as the run "
            "had it"
        )
    if not (previous.branches or previous.run.record.get("finished")):
        return
    if previous.checkpoint.step >= length.total:
        raise ConfigError(
            f"{name}: the run has done all of its {previous.checkpoint.step:,} steps; "
            f"{length.fix_for_more(previous.checkpoint.step)} to train longer"
        )
    early = config.trainer.early_stopping
    reason = stopping.reason(early, stopping.objective(early.metric, task.directions), measured(history))
    if reason is not None:
        raise ConfigError(
            f"{name}: the run has ended by {reason}; set a larger trainer.early_stopping.patience, or "
            "trainer.early_stopping.metric=null, to train longer"
        )


def load(engine: Engine, checkpoint: Checkpoint) -> None:
    """Loads a checkpoint's arrays into an engine, under the engine's own mesh and layout.

    Args:
      engine: built.
      checkpoint: of any mesh, layout and engine.

    Raises:
      ConfigError: the checkpoint is of another model or optimizer, or `engine.state` would round it; names the first
        variable that differs.
    """
    # Both checks come before the first array is placed, so a rejected checkpoint leaves the engine as it was.
    check_variables(engine, checkpoint)
    _check_precision(engine, checkpoint)
    engine.load_state(checkpoint)


def check_variables(engine: Engine, checkpoint: Checkpoint) -> None:
    """Checks that an engine has the variables of a checkpoint.

    Args:
      engine: built.
      checkpoint: of any mesh, layout and engine.

    Raises:
      ConfigError: the checkpoint is of another model or optimizer; names the first variable that differs.
    """
    variables = engine.variables()
    # The model's variables come first: what else a state has (optimizer state, averages) follows from them.
    unmatched = sorted(set(variables) ^ set(checkpoint), key=lambda path: (not is_variable(path), path))
    if unmatched:
        path = unmatched[0]
        group = _differing_group(path, variables, checkpoint)
        where = "the checkpoint lacks" if path in variables else "this config does not have"
        raise ConfigError(
            f"checkpoint {checkpoint.folder}: was saved with another {group}, {where} {path}; set {group} as the run "
            "had it"
        )
    for path, info in variables.items():
        if checkpoint.shape(path) != info.shape:
            raise ConfigError(
                f"checkpoint {checkpoint.folder}: was saved with another model, {path} has shape "
                f"{list(checkpoint.shape(path))} there and {list(info.shape)} here; set model as the run had it"
            )


def _differing_group(path: str, variables: Iterable[str], checkpoint: Iterable[str]) -> str:
    """Returns the config key that makes the difference if only one of two states has a path."""
    if is_variable(path):
        return "model"
    kind = path.removesuffix(owner_of(path))
    if _has_kind(variables, kind) and _has_kind(checkpoint, kind):
        # Both have this kind of optimizer state, but for other variables.
        return "model.trainable"
    return "optimizer.ema" if is_ema(path) else "optimizer"


def _has_kind(paths: Iterable[str], kind: str) -> bool:
    return any(path.startswith(kind) for path in paths)


def _check_precision(engine: Engine, checkpoint: Checkpoint) -> None:
    """Rejects rounding of what steps change; frozen weights are rounded as a step would round them anyway."""
    trained = set(engine.trainable)
    for path, info in engine.variables().items():
        is_rounded = info.dtype == _NARROW and checkpoint.dtype(path) != _NARROW
        if is_rounded and owner_of(path) in trained:
            raise invalid(
                "engine.state",
                _NARROW,
                problem=f"would round {path}, which checkpoint {checkpoint.folder} has in {checkpoint.dtype(path)}",
                fix="set engine.state=master to compute with bfloat16 weights, or engine.state=float32",
            )

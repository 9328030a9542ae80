"""Resuming: opens the run and the checkpoint, checks that the config can continue from it, and loads the state.

The order of a resume, with the reason for each place:

1. `open_previous`, before a framework is imported: the run is found, locked, found once more under the lock (another
   process may have changed it until then), checked for a process that still runs it, and its checkpoint is verified.
2. `check_data` and `check_unfinished`, when data and task are known. Up to here nothing was changed, and the run's
   record in the tracking store was not opened; there, a rejected config would show as a failed run.
3. `load`, when the engine is built: every variable must agree before the first is assigned.
4. `attempts.begin` writes the run's record again, with this process in it, when everything else is ready.

`resume=auto name=<name>` begins the run, or continues it. Its folder has the run's name, so every start finds it. Of
several starts at once, one takes the lock on that folder.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from runner.checkpoint import runs, storage
from runner.checkpoint.arguments import NAME, OF_COMPILE, folder_of, recorded_overrides
from runner.checkpoint.files import DamagedError
from runner.checkpoint.manifest import CONSTANTS, DIGEST, ENCODING
from runner.checkpoint.places import Place, place
from runner.checkpoint.reading import Checkpoint
from runner.checkpoint.runs import WENT_BACK, SavedRun
from runner.cluster.team import current
from runner.config.convert import flatten
from runner.config.schema import RunConfig
from runner.data.base import Encoding
from runner.engine.common import Engine
from runner.engine.lengths import RunLength
from runner.errors import EXIT_DONE, ConfigError, invalid, shown
from runner.layout.paths import is_variable, owner_of
from runner.task.base import LOSS, Task

# The keys that decide which examples a step sees. A resumed run must see those that it has not seen.
_ORDER = (
    "dataset.name",
    "dataset._target_",
    "dataset.features",
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
_EXAMPLE = ("dataset.standardize", "dataset.sequence_length", "dataset.documents")

# If this key is null and the data has no test split, a share of the train split is taken for it.
_SPLITS_TRAIN = "dataset.test"

# The narrower dtype of a state; `engine.state=bfloat16` would round a checkpoint of float32 numbers.
_NARROW = "bfloat16"


@dataclass(frozen=True)
class Previous:
    """A recorded run as it was left, and its checkpoint, from which this process resumes, branches or evaluates.

    `branches`: a new run begins with the checkpoint, and this run stays unchanged.
    """

    run: SavedRun
    checkpoint: Checkpoint
    branches: bool = False

    @cached_property
    def later_steps(self) -> list[int]:
        """The steps of the run's checkpoints after this one, before a run that continues removes them."""
        return [step for step in storage.steps(self.run.folder) if step > self.checkpoint.step]

    @property
    def encoding(self) -> Encoding | None:
        """How the run's data became numbers; None if it needed no encoding."""
        recorded = self.checkpoint.about.get(ENCODING)
        return None if recorded is None else Encoding.from_json(recorded)

    @property
    def constants(self) -> Mapping[str, Any]:
        """What the run's task computed from its training data and decided by its model."""
        constants: Mapping[str, Any] = self.checkpoint.about.get(CONSTANTS, {})
        return constants

    @property
    def repeats_steps(self) -> bool:
        """Whether the run trains steps again that it has logged: it went back, now or at an earlier resume."""
        return not self.branches and bool(self.run.record.get(WENT_BACK) or self.later_steps)

    def describe_position(self, length: RunLength) -> str:
        """Returns one line that says where training continues in a run of this length."""
        verb = "Starting from run" if self.branches else "Resuming run"
        return f"{verb} {self.run.id} at {length.describe_position(self.checkpoint.step)}"

    def describe_other_checkpoints(self) -> str:
        """Returns what happens to the run's later checkpoints; empty if it continues from its last."""
        name = f"{self.run.id}@{self.checkpoint.step}"
        if self.branches or not self.later_steps:
            return ""
        steps = ", ".join(f"{step:,}" for step in self.later_steps)
        return (
            f"resume={name}: the checkpoints of steps {steps} are from after that step and are removed "
            f"(branch={name} keeps all)"
        )


def opened_by_first(what: str, find: Callable[[], Previous | None]) -> Previous | None:
    """Opens a run in all processes: process 0 finds and verifies it, the others don't hash the checkpoint again.

    `what` is the run in words, used once.
    """
    found: list[Previous | None] = []

    def describe() -> list[Any]:
        found.append(find())
        previous = found[0]
        # Values of JSON only: that is what a broadcast can send.
        if previous is None:
            return []
        run = previous.run
        return [str(run.folder), dict(run.record), str(previous.checkpoint.folder), previous.branches]

    description = current().broadcast(what, describe)
    if found or not description:
        return next(iter(found), None)
    folder, record, checkpoint_folder, branches = description
    return Previous(SavedRun(place(folder), record), Checkpoint(place(checkpoint_folder), trusted=True), branches)


def open_previous(config: RunConfig, content: Mapping[str, object], locks: ExitStack) -> Previous | None:
    """Opens and checks the checkpoint that a run resumes or branches from; None for a new run.

    `content` is the config, resolved. `locks` gets a lock on the resumed run, so that no other process resumes it too.
    A ConfigError says why the run can't continue, and SystemExit is raised if the same command has finished it.
    """
    root = folder_of(config.trainer.checkpoint.folder)
    branches = config.branch is not None
    reference = config.branch or config.resume
    key = "branch" if branches else "resume"
    if reference is None:
        return None
    name = config.name  # which only a run with resume=auto has

    def find() -> Previous | None:
        if name is not None:
            return _find_named(name, root / name, locks)
        run, step = runs.find(key, reference, root)
        if not branches:
            locks.enter_context(runs.locked(key, run))
            # Once more: another process may have changed the run before the lock was taken.
            run, step = runs.find(key, reference, root)
            run = runs.ended(key, run)
        return Previous(run, runs.open_checkpoint(key, run, step), branches)

    previous = opened_by_first(f"the run of {key}", find)
    if previous is None:
        return None
    record = previous.run.record
    if name is not None and current().broadcast(
        "whether the run has finished",
        lambda: bool(record.get("finished")) and _is_of_this_command(record["overrides"]),
    ):
        if current().is_first:
            print(f"name={name}: the run has finished; its checkpoints are in {previous.run.folder}", flush=True)
        # What started this command (a job, an array, a start script) is to see that nothing is left to do.
        raise SystemExit(EXIT_DONE)
    check_examples(previous.checkpoint, content, order_only=branches)
    return previous


def _is_of_this_command(overrides: Sequence[str]) -> bool:
    typed = recorded_overrides()
    return overrides in (typed, [*typed, OF_COMPILE])


def _find_named(name: str, folder: Place, locks: ExitStack) -> Previous | None:
    """Returns a named run at its last whole checkpoint; None: it has none, so it trains from the start."""
    locks.enter_context(runs.locked(NAME, SavedRun(folder, {"run": name})))
    run = runs.begun(folder)
    if run is None:
        return None
    if run.record.get(NAME) != name:
        problem = f"{folder} has the checkpoints of run {run.id}, which has another name"
        raise invalid(NAME, name, problem=problem, fix="choose another name")
    run = runs.ended(NAME, run)
    steps = storage.steps(folder)
    for step in reversed(steps):
        try:
            return Previous(run, runs.open_checkpoint("resume", run, step))
        except ConfigError as error:
            # Of a newer format: the steps after an earlier checkpoint are not lost.
            if step == steps[0] or not isinstance(error.__cause__, DamagedError):
                raise
            print(f"warning: {error}", flush=True)
    return None


def check_examples(checkpoint: Checkpoint, content: Mapping[str, object], *, order_only: bool = False) -> None:
    """Checks that a config continues with the same examples in the same order; raises ConfigError.

    With `order_only` the form of an example may be another one, as in a branch.
    """
    before = dict(flatten(checkpoint.about["config"]))
    now = dict(flatten(content))
    keys = _ORDER if order_only else (*_ORDER, *_EXAMPLE)
    differing = [key for key in keys if before.get(key) != now.get(key)]
    if (before.get(_SPLITS_TRAIN, "") is None) != (now.get(_SPLITS_TRAIN, "") is None):
        differing.append(_SPLITS_TRAIN)
    for key in differing[:1]:
        trained = f"{key}={shown(before.get(key))}"
        problem = f"the run has trained with {trained}, which decides its examples or their order"
        fix = f"leave out {key}"
        if now.get(key) is None:
            fix = f"set {trained}"  # a default may have changed since
        raise invalid(key, now.get(key), problem=problem, fix=f"{fix}, or start a new run")


def check_data(checkpoint: Checkpoint, digest: str) -> None:
    """Checks by `Dataset.digest` that a run continues with the data that it began with; raises ConfigError."""
    if checkpoint.about.get(DIGEST, digest) != digest:
        raise ConfigError(
            f"resume: the data has changed since run {checkpoint.about['run']} began (SHA-256 mismatch); restore the "
            "files, or start a new run on the new data with branch=<run id> in place of resume"
        )


def check_unfinished(previous: Previous, length: RunLength, task: Task) -> None:
    """Rejects a run with other metrics, and one that has nothing left to train, with a ConfigError.

    A run that has done all its steps without recording its results is accepted: it evaluates and records.
    """
    name = f"resume={previous.run.id}"
    if previous.branches:
        name = f"branch={previous.run.id}"
    history = previous.checkpoint.history()
    missing = {LOSS, *task.step_metrics} - set(history.names)
    if history.evaluations:
        _, evaluated = history.evaluations[-1]
        missing |= set(task.directions) - set(evaluated.metrics)
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


def load(engine: Engine, checkpoint: Checkpoint) -> None:
    """Loads a checkpoint of any mesh, layout and engine into an engine, under the engine's own mesh and layout.

    A ConfigError says that it is of another model or optimizer, or that `engine.state` would round it.
    """
    # Both checks come before the first array is placed, so a rejected checkpoint leaves the engine as it was.
    check_variables(engine, checkpoint)
    trained = set(engine.trainable)
    for path, info in engine.variables().items():
        # Frozen weights are rounded as a step would round them anyway.
        is_rounded = info.dtype == _NARROW and checkpoint.dtype(path) != _NARROW
        if is_rounded and owner_of(path) in trained:
            raise invalid(
                "engine.state",
                _NARROW,
                problem=f"would round {path}, which checkpoint {checkpoint.folder} has in {checkpoint.dtype(path)}",
                fix="set engine.state=master to compute with bfloat16 weights, or engine.state=float32",
            )
    engine.load_state(checkpoint)


def check_variables(engine: Engine, checkpoint: Checkpoint) -> None:
    """Checks that an engine has the variables of a checkpoint; a ConfigError names the first that differs."""
    variables = engine.variables()
    # The model's variables come first: what else a state has (optimizer state, averages) follows from them.
    unmatched = sorted(set(variables) ^ set(checkpoint), key=lambda path: (not is_variable(path), path))
    for path in unmatched[:1]:
        group = "model"
        fix = "model"
        if not is_variable(path):
            group = "optimizer"
            fix = "optimizer and model.trainable"
        where = "the checkpoint lacks" if path in variables else "this config does not have"
        raise ConfigError(
            f"checkpoint {checkpoint.folder}: was saved with another {group}, {where} {path}; set {fix} as the "
            "run had it"
        )
    for path, info in variables.items():
        if checkpoint.shape(path) != info.shape:
            raise ConfigError(
                f"checkpoint {checkpoint.folder}: was saved with another model, {path} has shape "
                f"{list(checkpoint.shape(path))} there and {list(info.shape)} here; set model as the run had it"
            )

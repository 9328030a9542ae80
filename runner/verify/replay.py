"""Recorded steps: `runner.verify run=<run id> step=<step>` computes one again and compares it with the record.

The step is trained by the loop of the run itself, from the nearest checkpoint before it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from omegaconf import DictConfig

from runner.checkpoint import manifest, runs, storage
from runner.checkpoint.files import DamagedError
from runner.checkpoint.metric_history import MetricHistory
from runner.checkpoint.reading import Checkpoint
from runner.checkpoint.recorder import MetricRecorder
from runner.checkpoint.resume import check_data, check_examples, check_variables, load
from runner.checkpoint.runs import SavedRun
from runner.checkpoint.saver import Saver
from runner.cluster.team import current
from runner.config.convert import flatten, resolved
from runner.config.schema import DatasetConfig, ProfileConfig, ReplayConfig, RunConfig, TrainerConfig
from runner.config.schema_trainer import EarlyStoppingConfig
from runner.console import Console
from runner.data import loading, workers
from runner.data.base import Array, Dataset, DataSource
from runner.engine import devices, lengths, make_engine, registry
from runner.engine.common import Engine
from runner.engine.optim import transformation
from runner.errors import ConfigError, EngineError, invalid, shown
from runner.host import signals, stages
from runner.host.outputs import quiet_native_log
from runner.host.signals import StopRequest
from runner.plan.checks.trainer import with_metrics, with_plateau_metric
from runner.task.base import DataSpec, Task
from runner.task.registry import make_task
from runner.train import feed, identity, loop, profile
from runner.train.display import Display
from runner.train.record import with_config
from runner.train.saved import open_saved
from runner.verify.meshproof.differences import Check, identical
from runner.verify.meshproof.report import plain

FILE = "step.json"
# Keys that say nothing about what a step computes, although a run with another value is another run.
_IGNORED = ("trainer.log_model", "trainer.on_nan", "cluster.start_timeout", "cluster.coordinator", "cluster.index")
_AXES = "mesh.axes."
# Examples and differences that are printed; the file has all.
_SHOWN = 10

# Key -> the recorded value and the present one.
Differences = dict[str, tuple[object, object]]
# Path of a variable -> the SHA-256 of its dtype, shape and bytes.
State = dict[str, str]


@dataclass(frozen=True)
class RecordedStep:
    """A step of a recorded run.

    Attributes:
      step: counted from 1: its result is the state after so many steps.
      start: checkpoint to start from; None: the beginning of the run.
      saved: checkpoint after the step; None: the run has none.
      history: the metrics in the run's last checkpoint.
      last: the step of that checkpoint.
      about: what the first checkpoint after the step records of the run: its config, its versions, its data.
    """

    run: SavedRun
    step: int
    start: Checkpoint | None
    saved: Checkpoint | None
    history: MetricHistory
    last: int
    about: Mapping[str, Any]

    @property
    def first(self) -> int:
        """The steps done at the start."""
        return 0 if self.start is None else self.start.step


def run(config: RunConfig, composed: DictConfig) -> None:
    """Computes a step of a recorded run again, and prints and writes how it compares with the record.

    Raises:
      ConfigError: there is no such run or step, or the config has other examples, data, variables or fewer steps than
        the run.
      EngineError: the step differs from the record although nothing else does; or as in training.
      DataError, Interrupted: as in training.
    """
    saved = open_saved(config.run, config.trainer.checkpoint, "runner.verify")
    recorded = recorded_step(saved.run, config.replay)
    content = resolved(composed, config.mesh, config.tracking.uri)
    # Before the data and the engine are loaded: the configs alone tell whether the examples have another order.
    check_examples(saved.checkpoint, content, order_only=True)
    folder = with_config(content)
    changed = config_differences(recorded.about["config"], content) | version_differences(recorded.about)
    printed = devices.device_lines(config, composed)
    stop = signals.current()
    registry.prepare(config)
    data = loading.load(config.dataset, config.trainer.seed, saved.encoding, config.task)
    current().agree("the data's SHA-256", data.digest)
    check_data(saved.checkpoint, data.digest)
    task = make_task(config.task, data.specs, data.train, saved.constants, data.vocabulary)
    again = recompute(config, data, task, recorded, folder, stop)
    # All processes compute the step on their part of the mesh. Process 0 compares and reports.
    if not current().is_first:
        return
    compared, differing = compare(recorded, again.history, again.variables)
    printed = [*printed, *_lines(recorded, changed, again.examples, compared, differing)]
    file = {
        "run": recorded.run.id,
        "step": recorded.step,
        "start": recorded.first,
        "equal": not differing,
        "differences": {key: list(map(str, values)) for key, values in changed.items()},
        "examples": again.examples,
        "compared_metrics": compared["metric"],
        "compared_variables": compared["variable"],
        "differing": list(map(plain, differing)),
        "states": again.states,
    }
    (folder / FILE).write_text(json.dumps(file, indent=1) + "\n")
    Console().print_lines([*printed, f"written: {folder / FILE}"])
    # Another config or another version of a library explains a difference, so only a step without one fails.
    if differing and not changed:
        raise EngineError(
            f"step={recorded.step}: differs from the record with the recorded config and libraries; {folder} "
            "has the details"
        )


def recorded_step(run: SavedRun, options: ReplayConfig) -> RecordedStep:
    """Returns the record of a run's step; a ConfigError if it can't be computed, or a checkpoint is damaged."""
    step = options.step
    assert step is not None
    steps = storage.steps(run.folder)
    last = runs.open_checkpoint("run", run, steps[-1])
    history = last.history()
    start = _start(run, steps, step, options.start)
    saved = None
    if step == last.step:
        saved = last
    elif step in steps:
        saved = runs.open_checkpoint("run", run, step)
    # A resumed run may have another config than before. The first checkpoint from the step on was written by the
    # attempt that trained the step, so it has the config and the versions of that attempt.
    after = min((other for other in steps if other >= step), default=last.step)
    try:
        about = manifest.read(storage.place(run.folder, after)).about
    except DamagedError as error:
        raise ConfigError(f"run={run.id}: its checkpoint of step {after} is damaged ({error})") from error
    return RecordedStep(run, step, start, saved, history, last.step, about)


def _start(run: SavedRun, steps: Sequence[int], step: int, first: int | None) -> Checkpoint | None:
    """Returns the checkpoint to start from, `first` if it is given; None: the beginning of the run."""
    if first is None:
        first = max((other for other in steps if other < step), default=0)
    elif first >= step or (first and first not in steps):
        names = ", ".join(map(str, steps))
        problem = f"must be a checkpoint before step {step}; run {run.id} has {names}"
        raise invalid("replay.start", first, problem=problem, fix="remove replay.start, or set it to one of them")
    start = None
    if first or 0 in steps:
        start = runs.open_checkpoint("run", run, first)
    origin = run.record.get("origin")
    if start is None and origin:
        problem = f"run {run.id} branched from {origin}, and has no checkpoint before the step"
        raise invalid("replay.step", step, problem=problem, fix=f"compute it from that run: run={origin}")
    return start


def config_differences(recorded: Mapping[str, Any], now: Mapping[str, Any]) -> Differences:
    """Returns the keys of two configs whose values differ and may change what a step computes, with both values.

    A key that only one of the two has is a key of another version, and left out, unless it is the axis of a mesh.
    """
    before = dict(flatten(recorded))
    after = dict(flatten(now))
    differing: Differences = {}
    for key in before | after:
        is_compared = (key in before and key in after) or key.startswith(_AXES)
        if is_compared and identity.counts(key) and not key.startswith(_IGNORED) and before.get(key) != after.get(key):
            differing[key] = before.get(key), after.get(key)
    return differing


def version_differences(recorded: Mapping[str, Any]) -> Differences:
    """Returns the libraries whose versions are not the recorded ones, with both versions."""
    installed = identity.versions()
    differing: Differences = {}
    for name, version in dict(recorded.get("versions") or {}).items():
        if name in installed and installed[name] != version:
            differing[name] = version, installed[name]
    return differing


def recompute(
    config: RunConfig, data: Dataset, task: Task, recorded: RecordedStep, folder: Path, stop: StopRequest
) -> Recomputed:
    """Trains from the start of a recorded step to its end, and on to the end of the window of its metrics.

    The loop is that of training, with its evaluations, which may reduce the learning rate. Raises as `run` does.
    """
    trainer = with_metrics(config.trainer, task.directions, task.step_metrics)
    optimizer = with_plateau_metric(config.optimizer, trainer, task.directions, task.step_metrics)
    # A NaN or Inf loss is a result here and ends nothing, and the step may be after an early stop of the run.
    trainer = replace(trainer, on_nan="continue", profile=ProfileConfig(), early_stopping=EarlyStoppingConfig())
    config = replace(config, trainer=trainer, optimizer=optimizer)
    length = lengths.run_length(config, data.train.size, task.tokens)
    config = replace(config, optimizer=transformation.with_epoch(optimizer, length.epoch))
    total = length.total
    if recorded.step > total:
        raise invalid("step", recorded.step, problem=f"the run has {total:,} steps", fix=f"set step={total} or less")
    with quiet_native_log(folder / "runner.log"):
        unpadded = lengths.without_padding(config.dataset, trainer, data.train.size)
        engine = make_engine(replace(config, dataset=unpadded), DataSpec(task.arrays, task), total)
        engine.build()
        engine.cache_on_device(data.train)
        if recorded.start is not None:
            load(engine, recorded.start)
        elif recorded.saved is not None:
            # Before the steps and not after them, when the result is compared with it.
            check_variables(engine, recorded.saved)
    window_end = -(-recorded.step // trainer.log_every_steps) * trainer.log_every_steps
    # The record ends with the last checkpoint: a window that was logged later has nothing to be compared with.
    last = window_end if window_end <= min(recorded.last, total) else recorded.step
    again = Recomputed(engine, recorded, last, records=config.replay.states)
    again.examples = _examples(config.dataset, trainer, data.train, recorded.step, length)
    with workers.Workers(config.dataset) as readers:
        splits = feed.splits(config.dataset, trainer, data, task, readers, engine)
        profiler = profile.Profiler(trainer.profile, engine.trace, folder)
        end_together = partial(current().raise_if_requested, stop)
        hooks = loop.LoopHooks(_ignore, _ignore, Display(), end_together, again, profiler)
        title = f"computing steps {recorded.first + 1:,} to {last:,} again"
        with stages.stage(title), stop.deferring(), suppress(_ReachedError):
            # The last step of a run is a period's end, after which the saver is asked and ends the training.
            loop.train(config, engine, splits, hooks, recorded.start)
    return again


def _examples(
    dataset: DatasetConfig, trainer: TrainerConfig, train: DataSource, step: int, length: lengths.RunLength
) -> list[int]:
    """Returns the indices of a step's examples in the training split, padding left out."""
    epoch, offset = divmod(step - 1, length.epoch)
    steps = min(length.epoch, length.total - epoch * length.epoch)
    # The plan begins after `offset` steps of the epoch, so its first batch is that of the step.
    plan = feed.epoch_plan(dataset, trainer, train, epoch, steps, offset)
    return list(map(int, plan.indices[0][plan.weights[0] > 0]))


def _ignore(*_: object) -> None:
    """Takes what training reports, which the run has recorded already."""


class _ReachedError(Exception):
    """Ends the training at the last step."""


class Recomputed(Saver):
    """A recorded step, computed again. Saves nothing: takes this of the training, and ends it after the last step.

    Attributes:
      history: the metrics up to the last step, as training records them.
      variables: the state after the recorded step.
      examples: indices of the step's examples in the training split, padding left out.
      states: digests of the state at the start and after each step, if they are recorded.
    """

    history: MetricHistory
    variables: Mapping[str, Array]
    examples: list[int]

    def __init__(self, engine: Engine, recorded: RecordedStep, last: int, *, records: bool) -> None:
        """Takes the first state, as two runs may begin with different values."""
        super().__init__()
        self._engine = engine
        self._step = recorded.step
        self._last = last
        self._records = records
        self.states: dict[int, State] = {}
        if records:
            self.states[recorded.first] = digests(engine.state())

    def steps_left(self, step: int) -> int | None:
        """Returns after how many steps a state is taken next; None: no more are, and the feed only reads ahead."""
        if self._records and step < self._step:
            return 1
        return min((stop - step for stop in (self._last, self._step) if stop > step), default=None)

    def save_if_due(self, step: int, recorder: MetricRecorder) -> None:
        """Takes the state if it is due; raises after the last step."""
        if step == self._step:
            self.variables = self._engine.state()
        if self._records and step <= self._step:
            self.states[step] = digests(self._engine.state())
        if step >= self._last:
            # Device calls are read later than they are started.
            recorder.drain()
            self.history = recorder.history
            raise _ReachedError


def digests(state: Mapping[str, Array]) -> State:
    """Returns a digest of each variable of a state."""
    found = {}
    for path, array in state.items():
        content = f"{array.dtype} {array.shape}".encode() + array.tobytes()
        found[path] = hashlib.sha256(content).hexdigest()
    return found


def compare(
    recorded: RecordedStep, history: MetricHistory, variables: Mapping[str, Array]
) -> tuple[dict[str, int], list[Check]]:
    """Compares with the run's metrics and, if the run has one, with the checkpoint after the step.

    Returns:
      How many metrics and variables were compared, and those that differ: metrics by step, variables by size. Another
      dtype with the same values is not a difference, nor are NaNs on both sides.
    """
    metrics = _values(recorded.history)
    again = _values(history)
    # The values up to the start come from the checkpoint itself, so comparing them would show nothing.
    common = sorted(key for key in metrics.keys() & again.keys() if key[0] > recorded.first)
    saved: Mapping[str, Array] = recorded.saved or {}
    found: list[Check] = []
    # Inf minus Inf is NaN, and NumPy would warn of it.
    with np.errstate(invalid="ignore"):
        for step, name in common:
            expected = metrics[step, name]
            actual = again[step, name]
            if not np.array_equal(expected, actual, equal_nan=True):
                found.append(identical("metric", name, "", step, expected, actual))
        differing: list[Check] = []
        for path in saved:
            if not np.array_equal(saved[path], variables[path], equal_nan=True):
                differing.append(identical("variable", path, path, recorded.step, saved[path], variables[path]))
    # A NaN is larger than any number.
    differing.sort(key=lambda check: np.nan_to_num(check.relative, nan=np.inf), reverse=True)
    return {"metric": len(common), "variable": len(saved)}, [*found, *differing]


def _values(history: MetricHistory) -> dict[tuple[int, str], Array]:
    """Returns every metric by its step and its logged name."""
    evaluations = [(step, evaluation.metrics) for step, evaluation in history.evaluations]
    values = {}
    for prefix, rows in (("train/", history.train), ("epoch/", history.epochs), ("eval/", evaluations)):
        for step, means in rows:
            for name, mean in means.items():
                values[step, prefix + name] = np.asarray(mean)
    return values


def _lines(
    recorded: RecordedStep,
    changed: Differences,
    examples: Sequence[int],
    compared: Mapping[str, int],
    differing: Sequence[Check],
) -> list[str]:
    """Returns the lines that are printed; `changed` are keys and libraries that are not the recorded ones."""
    step = recorded.step
    start = "the beginning" if recorded.start is None else f"the checkpoint of step {recorded.first:,}"
    printed = [f"computed step {step:,} of run {recorded.run.id} again, from {start}"]
    for key, (before, now) in changed.items():
        printed.append(f"other than in the run: {key}={shown(now)}, which was {shown(before)} in this step")
    rows = ", ".join(map(str, examples[:_SHOWN]))
    if len(examples) > _SHOWN:
        rows += f", ... ({len(examples)} in all, in {FILE})"
    printed.append(f"examples of its batch, as indices in the training split: {rows}")
    parts = []
    if compared["metric"]:
        parts.append(f"{compared['metric']} recorded metrics")
    if compared["variable"]:
        parts.append(f"all {compared['variable']} variables of the checkpoint of step {step:,}")
    if not parts:
        between = f"steps {recorded.first + 1:,} to {step:,}"
        return [*printed, f"nothing to compare with: the run's checkpoints have no metrics of {between}"]
    outcome = "compared" if differing else "bitwise identical"
    printed.append(f"{outcome}: {' and '.join(parts)}")
    for check in differing[:_SHOWN]:
        printed.append(
            f"{check.kind} {check.name} differs at step {check.step:,} by {check.difference:.3g} "
            f"({check.relative:.2g} of its largest value)"
        )
    if len(differing) > _SHOWN:
        printed.append(f"{len(differing) - _SHOWN} more differ, see {FILE}")
    return printed

"""A step of a recorded run: where to start, what it is compared with, and the report of what was computed again."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from runner.checkpoint import (
    manifest,
    recovery,
    runs,
    storage,
)
from runner.checkpoint.files import DamagedError
from runner.checkpoint.metric_history import (
    MetricHistory,
    StepMeans,
    from_arrays,
)
from runner.checkpoint.reading import Checkpoint
from runner.checkpoint.runs import SavedRun
from runner.config.convert import flatten
from runner.config.schema_replay import ReplayConfig
from runner.data.base import Array
from runner.errors import ConfigError, invalid
from runner.train import identity

FILE = "step.json"

# Keys that say nothing about what a step computes, although a run with another value is another run.
_IGNORED = (
    *("trainer.log_model", "trainer.on_nan", "cluster.start_timeout", "cluster.coordinator"),
    *("cluster.index", "cluster.interface", "cluster.secret_file"),
)
_AXES = "mesh.axes."
# Examples and variables that are printed; the file has all.
_SHOWN = 10

# Key -> the recorded value and the present one.
Differences = Mapping[str, tuple[object, object]]
# Path of a variable -> its L2 norm, and the sum of its entries with fixed random signs.
State = Mapping[str, tuple[float, float]]


@dataclass(frozen=True)
class RecordedStep:
    """A step of a recorded run.

    Attributes:
      run: the run.
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


@dataclass
class Recomputed:
    """What was computed again.

    Attributes:
      metrics: means of each step by name, by step.
      states: of each step, if they are recorded.
      history: the metrics up to the last step, as training records them.
      variables: the state after the recorded step.
      examples: indices of the step's examples in the training split, padding left out.
    """

    metrics: dict[int, dict[str, float]] = field(default_factory=dict)
    states: dict[int, State] = field(default_factory=dict)
    history: MetricHistory | None = None
    variables: dict[str, Array] = field(default_factory=dict)
    examples: list[int] = field(default_factory=list)


@dataclass(frozen=True)
class Difference:
    """A recorded value that was not computed again bit for bit, and the largest absolute difference of two entries.

    That is NaN if only one of them is finite; `relative` is it over the largest recorded entry.
    """

    name: str
    step: int
    largest: float
    relative: float


@dataclass(frozen=True)
class Comparison:
    """How many recorded values were compared, and where they differ: metrics by step, variables by relative
    difference.

    No variables are compared if there is no checkpoint of that step.
    """

    points: int
    variables: int
    metric_differences: tuple[Difference, ...]
    variable_differences: tuple[Difference, ...]

    @property
    def is_equal(self) -> bool:
        """Whether everything that was compared is bitwise identical."""
        return not self.metric_differences and not self.variable_differences


def recorded_step(run: SavedRun, options: ReplayConfig) -> RecordedStep:
    """Returns the record of a run's step.

    Raises:
      ConfigError: no step is named, the run can't be computed from there, or a checkpoint is damaged.
    """
    step = options.step
    if step is None:
        raise invalid("step", None, problem="is the step to compute again", fix="set step=100, or against=<run id>")
    steps = storage.steps(run.folder)
    last = runs.open_checkpoint("run", run, steps[-1])
    history = from_arrays(last.history())
    start = _start(run, steps, step, options.start, history)
    saved = None
    if step in steps:
        saved = last if step == last.step else runs.open_checkpoint("run", run, step)
    # A resumed run may have another config than before. The first checkpoint from the step on was written by the
    # attempt that trained the step, so it has the config and the versions of that attempt.
    after = min((other for other in steps if other >= step), default=last.step)
    try:
        about = manifest.read(storage.place(run.folder, after)).about
    except DamagedError as error:
        raise ConfigError(f"run={run.id}: its checkpoint of step {after} is damaged ({error})") from error
    return RecordedStep(run, step, start, saved, history, last.step, about)


def _start(
    run: SavedRun, steps: Sequence[int], step: int, first: int | None, history: MetricHistory
) -> Checkpoint | None:
    """Returns the checkpoint to start from, `first` if it is given; None: the beginning of the run."""
    if first is None:
        first = max((other for other in steps if other < step), default=0)
    elif first >= step:
        raise invalid("replay.start", first, problem=f"must be before the step ({step})", fix="remove replay.start")
    elif first and first not in steps:
        names = ", ".join(map(str, steps))
        problem = f"the checkpoints of run {run.id} are {names}"
        raise invalid("replay.start", first, problem=problem, fix="remove replay.start, or set it to one of them")
    start = runs.open_checkpoint("run", run, first) if first or 0 in steps else None
    origin = run.record.get("origin")
    if start is None and origin:
        branched = int(str(origin).rpartition("@")[2])
        problem = f"run {run.id} branched at step {branched}, and has no checkpoint before step {step}"
        raise invalid(
            "replay.step", step, problem=problem, fix=f"compute it from the run that it branched from: run={origin}"
        )
    known = [] if start is None else from_arrays(start.history()).restores
    if any(restore.step < step for restore in history.restores[len(known) :]):
        problem = "after the checkpoint before it, the run restored a checkpoint because of a NaN or Inf loss"
        raise invalid("replay.step", step, problem=problem, fix="set a step with a later checkpoint before it")
    return start


def config_differences(recorded: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, tuple[object, object]]:
    """Returns the keys of two configs whose values differ and may change what a step computes, with both values.

    A key that only one of the two has is a key of another version, and left out, unless it is the axis of a mesh.
    """
    before = dict(flatten(recorded))
    after = dict(flatten(now))
    differing: dict[str, tuple[object, object]] = {}
    for key in before | after:
        is_in_both = key in before and key in after
        if not identity.counts(key) or key.startswith(_IGNORED) or not (is_in_both or key.startswith(_AXES)):
            continue
        if before.get(key) != after.get(key):
            differing[key] = before.get(key), after.get(key)
    return differing


def version_differences(recorded: Mapping[str, Any]) -> dict[str, tuple[object, object]]:
    """Returns the libraries whose versions are not the recorded ones, with both versions."""
    installed = recovery.versions()
    differing: dict[str, tuple[object, object]] = {}
    for name, version in dict(recorded.get("versions") or {}).items():
        if name in installed and installed[name] != version:
            differing[name] = version, installed[name]
    return differing


def compare(recorded: RecordedStep, result: Recomputed) -> Comparison:
    """Compares a recomputed step with the run's metrics and, if the run has one, with the checkpoint after it."""
    assert result.history is not None
    points = 0
    metrics: list[Difference] = []
    computed = {(prefix, step): means for prefix, step, means in _rows(result.history)}
    for prefix, step, means in _rows(recorded.history):
        # The rows up to the start come from the checkpoint itself, so comparing them would show nothing.
        actual = computed.get((prefix, step), {}) if step > recorded.first else {}
        for name in means.keys() & actual.keys():
            points += 1
            metrics += _difference(prefix + name, step, np.float64(means[name]), np.float64(actual[name]))
    metrics.sort(key=lambda difference: difference.step)
    variables: list[Difference] = []
    count = 0
    if recorded.saved is not None:
        count = len(recorded.saved)
        for path in recorded.saved:
            variables += _difference(path, recorded.step, recorded.saved[path], result.variables[path])
    # A NaN is larger than any number.
    variables.sort(key=lambda one: np.inf if np.isnan(one.relative) else one.relative, reverse=True)
    return Comparison(points, count, tuple(metrics), tuple(variables))


def _rows(history: MetricHistory) -> list[tuple[str, int, Mapping[str, float]]]:
    evaluations: list[StepMeans] = [(step, dict(evaluation.metrics)) for step, evaluation in history.evaluations]
    tables = {"train/": history.train, "epoch/": history.epochs, "eval/": evaluations}
    return [(prefix, step, means) for prefix, rows in tables.items() for step, means in rows]


def _difference(name: str, step: int, expected: Array | np.float64, actual: Array | np.float64) -> list[Difference]:
    """Returns the difference of two values; none if they are bitwise identical."""
    before = np.asarray(expected)
    after = np.asarray(actual)
    if before.shape != after.shape:
        return [Difference(name, step, np.nan, np.nan)]
    # Bytes are compared first: equal arrays, which are the rule, then need no float64 copies.
    if before.dtype == after.dtype and before.tobytes() == after.tobytes():
        return []
    wide_before = before.astype(np.float64)
    wide_after = after.astype(np.float64)
    # Another dtype with the same values is not a difference, nor are NaNs of other bits, or -0.0 in place of 0.0.
    if np.array_equal(wide_before, wide_after, equal_nan=True):
        return []
    # Inf minus Inf is NaN, and NumPy would warn of it.
    with np.errstate(invalid="ignore"):
        largest = float(np.max(np.abs(wide_before - wide_after), initial=0.0))
    scale = float(np.max(np.abs(wide_before), initial=0.0))
    return [Difference(name, step, largest, largest / scale if scale else largest)]


def lines(recorded: RecordedStep, result: Recomputed, comparison: Comparison, differences: Differences) -> list[str]:
    """Returns the lines that are printed; `differences` are keys and libraries that are not the recorded ones."""
    step = recorded.step
    start = "the beginning" if recorded.start is None else f"the checkpoint of step {recorded.first:,}"
    printed = [f"computed step {step:,} of run {recorded.run.id} again, from {start}"]
    for key, (before, now) in differences.items():
        printed.append(f"other than in the run: {key}={shown(now)}, which was {shown(before)} in this step")
    means = "  ".join(f"{name} {value:.6g}" for name, value in result.metrics[step].items())
    printed.append(f"step {step:,}: {means}")
    examples = ", ".join(map(str, result.examples[:_SHOWN]))
    if len(result.examples) > _SHOWN:
        examples += f", ... ({len(result.examples)} in all, in {FILE})"
    printed.append(f"examples of its batch, as indices in the training split: {examples}")
    compared: list[str] = []
    if comparison.points:
        compared.append(f"{comparison.points} recorded metrics")
    if comparison.variables:
        compared.append(f"all {comparison.variables} variables of the checkpoint of step {step:,}")
    if not compared:
        between = f"steps {recorded.first + 1:,} to {step:,}"
        return [*printed, f"nothing to compare with: the run's checkpoints have no metrics of {between}"]
    verb = "bitwise identical" if comparison.is_equal else "compared"
    printed.append(f"{verb}: {' and '.join(compared)}")
    for what, found in (("metric", comparison.metric_differences), ("variable", comparison.variable_differences)):
        for difference in found[:_SHOWN]:
            printed.append(
                f"{what} {difference.name} differs at step {difference.step:,} by {difference.largest:.3g} "
                f"({difference.relative:.2g} of its largest value)"
            )
        if len(found) > _SHOWN:
            printed.append(f"{len(found) - _SHOWN} more {what}s differ, see {FILE}")
    return printed


def shown(value: object) -> object:
    """Returns a value of a config as it is typed."""
    return "null" if value is None else value


def write(
    folder: Path, recorded: RecordedStep, result: Recomputed, comparison: Comparison, differences: Differences
) -> Path:
    """Writes step.json and returns its path."""
    content = {
        "run": recorded.run.id,
        "step": recorded.step,
        "start": recorded.first,
        "equal": comparison.is_equal,
        "differences": {key: list(map(str, values)) for key, values in differences.items()},
        "metrics": {str(step): means for step, means in sorted(result.metrics.items())},
        "examples": result.examples,
        "compared_metrics": comparison.points,
        "compared_variables": comparison.variables,
        "metric_differences": [asdict(difference) for difference in comparison.metric_differences],
        "variable_differences": [asdict(difference) for difference in comparison.variable_differences],
        "states": result.states,
    }
    path = folder / FILE
    path.write_text(json.dumps(content, indent=1) + "\n")
    return path

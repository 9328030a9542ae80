"""Search for the first step at which two recorded runs part, or at which one has a NaN.

The order, from cheap to expensive:

1. The configs of the runs are compared.
2. The logged metrics and the checkpoints of both runs bound the step: after it they differ, and at the last common
   checkpoint that is equal they do not differ yet.
3. Both runs are replayed between these bounds, with a record of every variable after each step. If the bounds are far
   apart, only some steps are recorded, and then each step between two of these in a second replay.
4. The step is replayed once more, with its batch, its gradients and the outputs of the layers.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from runner.bisect import cause
from runner.bisect.children import Replay, replay
from runner.config.schema import CheckpointConfig
from runner.errors import invalid
from runner.host.paths import outputs_dir, random_part
from runner.host.stores.urls import Place
from runner.replay.record import config_differences
from runner.task.base import LOSS
from runner.training.checkpoint import index, runs, storage
from runner.training.checkpoint.arguments import folder_of
from runner.training.checkpoint.reading import Checkpoint
from runner.training.checkpoint.runs import SavedRun
from runner.training.metric_history import MetricHistory, from_arrays

# The states of so many steps are recorded one by one. Of a longer range only some states are recorded first, because
# to copy every variable to the host takes longer than a step.
_ONE_BY_ONE = 64

# Relative to the norm of a variable: what rounding in another order makes of many steps, and less than what a person
# would look for.
_TOLERANCE_OF_MESHES = 1e-3

# Keys by which the same computation is done in another order.
_ORDER_KEYS = ("mesh.", "engine.", "cluster.", "layout.")

_FILE = "bisect.json"


@dataclass(frozen=True)
class _Side:
    """One of the runs.

    Attributes:
      run: recorded.
      steps: of its checkpoints.
      last: its last checkpoint.
      history: the metrics in it.
    """

    run: SavedRun
    steps: list[int]
    last: Checkpoint
    history: MetricHistory

    def checkpoint(self, step: int) -> Checkpoint:
        """Returns a checkpoint of the run."""
        return runs.open_checkpoint("run", self.run, step)


def bisect(run: str, against: str | None, checkpoints: str | None, tolerance: float | None) -> Iterator[str]:
    """Yields lines for the user, the result last.

    Args:
      run: names a run.
      against: names another one; None: searches the first NaN or Inf of the run.
      checkpoints: parent of the runs' folders; None: the project's.
      tolerance: smallest relative difference that counts; None: none is too small, unless meshes or engines differ.

    Raises:
      ConfigError: there is no such run, or a run can't be replayed.
      EngineError: a replay failed.
    """
    root = folder_of(CheckpointConfig(folder=checkpoints))
    first = _opened("run", run, root)
    folder = outputs_dir() / "bisects" / f"{time.strftime('%Y-%m-%d_%H-%M-%S')}-{random_part()}"
    if against is None:
        yield from _nan(first, folder)
        return
    second = _opened("against", against, root)
    yield from _part(first, second, folder, tolerance)


def _opened(key: str, name: str, root: Place) -> _Side:
    run, step = runs.find(key, name, root)
    if step is not None:
        raise invalid(key, name, problem="names a checkpoint, but bisect needs a run", fix="remove the part after @")
    steps = index.current_steps(storage.lineages(run.folder))
    last = runs.open_checkpoint("run", run, steps[-1])
    return _Side(run, steps, last, from_arrays(last.history()))


def _part(first: _Side, second: _Side, folder: Path, tolerance: float | None) -> Iterator[str]:
    """Yields the lines of a comparison of two runs."""
    differences = config_differences(first.last.about["config"], second.last.about["config"])
    if not differences:
        yield "configs: equal"
    for key, (before, after) in differences.items():
        yield f"configs: {key} is {_shown(before)} and {_shown(after)}"
    if tolerance is None:
        has_other_order = any(key.startswith(_ORDER_KEYS) for key in differences)
        tolerance = _TOLERANCE_OF_MESHES if has_other_order else 0.0
    low, high = _bounds(first, second, tolerance)
    if high is None:
        yield (
            f"the runs do not part: their common metrics and checkpoints up to step {low:,} are equal"
            f"{_within(tolerance)}"
        )
        return
    if low:
        yield f"equal{_within(tolerance)} at the checkpoints of step {low:,}"
    yield f"the first recorded difference is at step {high:,}"
    stride = _stride(low, high)
    step = _first_difference(first, second, folder / "states", [f"step={high}", *_records(low, stride)], tolerance)
    if step is not None and step > low and stride > 1:
        # The states before these steps are equal.
        options = [f"step={step}", *_records(low, 1, max(low, step - stride))]
        step = _first_difference(first, second, folder / "each", options, tolerance)
    if step is None:
        yield (
            "the replays of the runs do not part: what made them differ is in neither their configs nor their data "
            f"(another version of a library, or code that has changed since); {folder} has the replays"
        )
        return
    # Runs that differ at their start differ at `low`, but a replay has to compute one step at least.
    options = [f"step={max(step, low + 1)}", *_records(low, 1, step), "arrays=true"]
    replays = [
        replay(side.run, folder / "step" / name, options) for name, side in (("run", first), ("against", second))
    ]
    result = cause.of_difference(step, low, replays[0], replays[1], tolerance)
    _write(folder, result, differences)
    yield from result.lines()
    yield f"written: {_FILE}, and the batch and arrays of the step, in {folder}"


def _within(tolerance: float) -> str:
    return f" within {tolerance:g} of each variable's norm" if tolerance else ""


def _shown(value: object) -> object:
    return "null" if value is None else value


def _bounds(first: _Side, second: _Side, tolerance: float) -> tuple[int, int | None]:
    """Returns the last common checkpoint before which nothing differs, and a step at which the runs differ.

    The first is 0 if there is no such checkpoint. The second is None if nothing that both have recorded differs; the
    first is then the last step that both have recorded.
    """
    highs: list[int] = []
    compared = 0
    recorded = dict(second.history.train)
    for step, means in first.history.train:
        if step not in recorded:
            continue
        compared = max(compared, step)
        if not _are_close(means, recorded[step], tolerance):
            highs.append(step)
            break
    low = 0
    # In ascending order, and only up to the first difference: every byte of a checkpoint is read to open it.
    for step in sorted(set(first.steps) & set(second.steps)):
        if highs and step >= highs[0]:
            break
        compared = max(compared, step)
        one = first.checkpoint(step)
        other = second.checkpoint(step)
        if set(one) == set(other) and all(cause.are_close(one[path], other[path], tolerance) for path in one):
            low = step
        else:
            highs.append(step)
            break
    if not highs:
        return compared, None
    return low, min(highs)


def _are_close(one: Mapping[str, float], other: Mapping[str, float], tolerance: float) -> bool:
    for name in set(one) & set(other):
        difference = abs(one[name] - other[name])
        is_equal = one[name] == other[name] or (math.isnan(one[name]) and math.isnan(other[name]))
        # Not `difference > ...`: if one of the values is NaN, so is the difference, and every comparison with it is
        # false.
        if not is_equal and not difference <= tolerance * abs(one[name]):
            return False
    return True


def _stride(low: int, high: int) -> int:
    """Returns the steps between the states that a first replay records."""
    # Of n steps, a first replay records n / k states and a second one k. Their sum is the smallest for k = sqrt(n).
    return 1 if high - low <= _ONE_BY_ONE else math.isqrt(high - low)


def _records(start: int, every: int, first: int | None = None) -> list[str]:
    """Returns the options of a replay that records states.

    Args:
      start: step of the checkpoint to start from.
      every: steps between the states.
      first: step of the first state; None: the start. To copy a state may take longer than a step.
    """
    options = [f"start={start}", f"every={every}"]
    return options if first is None else [*options, f"record_from={first}"]


def _first_difference(first: _Side, second: _Side, folder: Path, options: list[str], tolerance: float) -> int | None:
    """Returns the first recorded step at which the replays differ; None if there is none."""
    one = replay(first.run, folder / "run", options)
    other = replay(second.run, folder / "against", options)
    states = other.states
    for step, state in sorted(one.states.items()):
        if step in states and cause.differing(state, states[step], tolerance):
            return step
    return None


def _nan(side: _Side, folder: Path) -> Iterator[str]:
    """Yields the lines of a search for the first NaN or Inf of a run."""
    low, bad = _nan_bounds(side)
    if bad is None and side.run.record.get("finished"):
        yield f"the run has no NaN or Inf up to its end, step {side.last.step:,}"
        return
    if bad is None:
        yield f"step {side.last.step:,}, the last checkpoint, has no NaN or Inf: training on from there"
    # How many steps a run that has not finished may have left is not known here.
    stride = _ONE_BY_ONE if bad is None else _stride(low, bad)
    last = "step=null" if bad is None else f"step={bad}"
    states = replay(side.run, folder / "states", [last, *_records(low, stride), "stop_at_nan=true"])
    step = _first_nan(states)
    if step is None:
        yield f"the run has no NaN or Inf up to step {states.step:,}"
        return
    if stride > 1:
        # A NaN stays in the weights or in the optimizer state, so the recorded states before have none.
        before = max((recorded for recorded in states.states if recorded < step), default=low)
        options = [f"step={step}", *_records(low, 1, before), "stop_at_nan=true"]
        step = _first_nan(replay(side.run, folder / "each", options)) or step
    options = [f"step={step}", f"start={low}", "arrays=true"]
    result = cause.of_nan(step, replay(side.run, folder / "step", options))
    _write(folder, result, {})
    yield from result.lines()
    yield f"written: {_FILE}, and the batch and arrays of the step, in {folder}"


def _nan_bounds(side: _Side) -> tuple[int, int | None]:
    """Returns the last checkpoint without a NaN or Inf (0: none), and a step that is not before the first NaN."""
    bad: int | None = None
    for step, means in side.history.train:
        # Another metric may be NaN because an earlier attempt of the run did not have it.
        if not math.isfinite(means[LOSS]):
            bad = step
            break
    low = 0
    for step in side.steps:
        if bad is not None and step >= bad:
            break
        checkpoint = side.checkpoint(step)
        if not all(np.all(np.isfinite(np.asarray(checkpoint[path], np.float32))) for path in checkpoint):
            bad = step
            break
        low = step
    return low, bad


def _first_nan(states: Replay) -> int | None:
    """Returns the first step whose loss or recorded state has a NaN or Inf; None if there is none."""
    steps = [step for step, state in states.states.items() if step and state["not_finite"]]
    steps += [step for step, loss in states.losses.items() if not math.isfinite(loss)]
    return min(steps, default=None)


def _write(folder: Path, result: cause.Cause, differences: Mapping[str, tuple[object, object]]) -> None:
    content = {**result.content(), "configs": {key: list(map(str, values)) for key, values in differences.items()}}
    (folder / _FILE).write_text(json.dumps(content, indent=1) + "\n")

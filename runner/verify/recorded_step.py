"""What a run has recorded of a step: where to start, and what the recomputed step is compared with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from runner.config.convert import flatten
from runner.config.schema_replay import ReplayConfig
from runner.data.base import Array
from runner.errors import ConfigError, invalid
from runner.sweep import identity
from runner.training.checkpoint import recovery, runs, storage
from runner.training.checkpoint.files import DamagedError
from runner.training.checkpoint.reading import Checkpoint, read_manifest
from runner.training.checkpoint.runs import SavedRun
from runner.training.metric_history import MetricHistory, from_arrays, to_arrays

# Keys that say nothing about what a step computes, although a run with another value is another run.
_IGNORED = (
    *("trainer.log_model", "trainer.on_nan", "cluster.start_timeout", "cluster.coordinator"),
    *("cluster.index", "cluster.interface", "cluster.secret_file"),
)

_AXES = "mesh.axes."


@dataclass(frozen=True)
class RecordedStep:
    """A step of a recorded run.

    Attributes:
      run: the run.
      step: the step, counted from 1: its result is the state after so many steps.
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


def recorded_step(run: SavedRun, options: ReplayConfig) -> RecordedStep:
    """Returns the record of a run's step.

    Args:
      run: the run.
      options: `replay`.

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
        about = read_manifest(storage.place(run.folder, after)).about
    except DamagedError as error:
        raise ConfigError(f"run={run.id}: its checkpoint of step {after} is damaged ({error})") from error
    return RecordedStep(run, step, start, saved, history, last.step, about)


def _start(
    run: SavedRun, steps: Sequence[int], step: int, first: int | None, history: MetricHistory
) -> Checkpoint | None:
    """Returns the checkpoint to start from; None: the beginning of the run.

    Args:
      run: the run.
      steps: of its checkpoints.
      step: that is computed last.
      first: `replay.start`.
      history: of the run.

    Raises:
      ConfigError: there is no such checkpoint, or none to start from.
    """
    if first is None:
        first = max((other for other in steps if other < step), default=0)
    elif first >= step:
        raise invalid("replay.start", first, problem=f"must be before the step ({step})", fix="remove replay.start")
    elif first and first not in steps:
        names = ", ".join(map(str, steps))
        problem = f"the checkpoints of run {run.id} are {names}"
        raise invalid("replay.start", first, problem=problem, fix="remove replay.start, or set it to one of them")
    if first or 0 in steps:
        return _with_restores(runs.open_checkpoint("run", run, first), history)
    origin = run.record.get("origin")
    if origin:
        branched = int(str(origin).rpartition("@")[2])
        problem = f"run {run.id} branched at step {branched}, and has no checkpoint before step {step}"
        raise invalid(
            "replay.step", step, problem=problem, fix=f"compute it from the run that it branched from: run={origin}"
        )
    if any(restore.step < step for restore in history.restores):
        problem = "the run restored a checkpoint after a NaN or Inf loss, and that checkpoint was deleted"
        raise invalid("replay.step", step, problem=problem, fix=f"set step to {steps[0] + 1} or more")
    return None


class _RestoredCheckpoint(Checkpoint):
    """A checkpoint whose history has the restores that its run had later, which lower the learning rate."""

    restores: Array

    def history(self) -> dict[str, Array]:
        """Returns the metrics so far, and all restores."""
        return {**super().history(), "restores": self.restores}


def _with_restores(checkpoint: Checkpoint, history: MetricHistory) -> Checkpoint:
    """Returns a checkpoint from which training continues as the run did, without the steps that it discarded."""
    before = from_arrays(checkpoint.history())
    if before.restores == history.restores:
        return checkpoint
    # `open_checkpoint` has verified the same files, so they need not be hashed again.
    restored = _RestoredCheckpoint(checkpoint.folder, trusted=True)
    restored.restores = to_arrays(history)["restores"]
    return restored


def config_differences(recorded: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, tuple[object, object]]:
    """Returns the keys of two configs whose values differ and may change what a step computes.

    Args:
      recorded: a config, as a checkpoint records it.
      now: another one.

    Returns:
      Key to the two values. A key that only one of the two has is a key of another version, and left out, unless it is
      the axis of a mesh.
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

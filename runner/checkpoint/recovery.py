"""What a training run needs of checkpoints: where it goes on, what it has logged, and where it saves."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from hydra.core.hydra_config import HydraConfig

from runner import stopping
from runner.checkpoint import runs
from runner.checkpoint.arguments import KEYS, folder_of, key_of
from runner.checkpoint.resume import check_order
from runner.checkpoint.runs import SavedRun
from runner.checkpoint.saver import CheckpointSaver, NoSaver, Saver, take_state
from runner.checkpoint.storage import Checkpoint
from runner.config import as_typed
from runner.engine.base import Engine
from runner.errors import ConfigError
from runner.history import evaluations_of, restores_of
from runner.schema import RunConfig
from runner.tracking import Tracker

_LIBRARIES = ("runner", "tensorflow", "tf-keras", "keras", "jax", "numpy")
_TAG = "runner.checkpoints"


@dataclass(frozen=True)
class Previous:
    """A run that goes on, and its checkpoint."""

    run: SavedRun
    checkpoint: Checkpoint


def open_previous(config: RunConfig, content: Mapping[str, Any]) -> Previous | None:
    """Opens and checks the checkpoint that a run goes on from; None for a new run.

    Args:
      config: checked; its `resume` is what `arguments.expand` made of the command line.
      content: the config, resolved.

    Raises:
      ConfigError: it is damaged, of a newer format, still running, or its examples are other ones.
    """
    if config.resume is None:
        return None
    run, step = runs.find("resume", config.resume, folder_of(config.trainer.checkpoint))
    runs.check_not_running("resume", run)
    checkpoint = runs.open_checkpoint("resume", run, step)
    check_order(checkpoint, content)
    return Previous(run, checkpoint)


def check_unfinished(config: RunConfig, before: Previous | None, total: int) -> None:
    """Refuses to go on with a run that has done all its steps and recorded them, or that early stopping has ended.

    Raises:
      ConfigError: it is such a run.
    """
    if before is None or not before.run.record.get("finished"):
        return
    if before.checkpoint.step >= total:
        raise ConfigError(
            f"resume={before.run.run} is refused: the run has done its {before.checkpoint.step:,} steps; "
            f"set trainer.epochs={config.trainer.epochs + 1} or more to train on"
        )
    reason = stopping.reason(config.trainer.early_stopping, evaluations_of(before.checkpoint.history()))
    if reason is not None:
        raise ConfigError(
            f"resume={before.run.run} is refused: the run has ended by {reason}; set a larger "
            "trainer.early_stopping.patience, or trainer.early_stopping.metric=null, to train on"
        )


class NewPoints:
    """Logs points that a run does not have: those after the last checkpoint come twice, and its past is logged again.

    So is what was logged before the checkpoint and was still on its way when the process died. A run that went back to
    a checkpoint, after a loss that was not finite, has points of steps that it did again: there a point counts as
    logged only where its value is the same.
    """

    def __init__(self, tracker: Tracker, checkpoint: Checkpoint | None) -> None:
        """Reads what the run has.

        Args:
          tracker: of the run.
          checkpoint: where it goes on; null: a new run.
        """
        self._tracker = tracker
        self._stored = tracker.logged() if checkpoint is not None else {}
        restores = restores_of(checkpoint.history()) if checkpoint is not None else []
        self._done_again = max((restore.bad for restore in restores), default=0)

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

    def log_changed(self, step: int, values: Mapping[str, float]) -> None:
        """Logs the values that are not the last ones of their metric."""
        last = {key: points[max(points)] for key, points in self._stored.items() if points}
        self.log(step, {key: value for key, value in values.items() if last.get(key) != value})


@contextmanager
def saving(
    config: RunConfig,
    content: Mapping[str, Any],
    engine: Engine,
    tracker: Tracker,
    folder: Path,
    before: Previous | None,
    recorded: ExitStack,
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
    """
    wanted = config.trainer.checkpoint
    if not wanted.enabled:
        yield NoSaver()
        return
    run = before.run.run if before else tracker.run_id or folder.name
    tracked = before.run.run_id is not None if before else tracker.run_id is not None
    place = before.run.folder.parent if before else folder_of(wanted)
    overrides = [one for one in as_typed(HydraConfig.get().overrides.task) if key_of(one) not in KEYS]
    saved = runs.register(place, run, tracked=tracked, overrides=overrides, root=folder_of(wanted))
    tracker.set_tags({_TAG: str(saved.folder)})
    about = {"run": run, "config": content, "seed": config.trainer.seed, "versions": versions()}
    start = before.checkpoint.step if before else 0
    saver = CheckpointSaver(wanted, saved.folder, take_state(engine, about), _warn, start)
    finished = False
    try:
        yield saver
        finished = True
    finally:
        saver.close()
        if finished:
            recorded.callback(runs.end, saved, finished=True)
        else:
            runs.end(saved, finished=False)


def versions() -> dict[str, str]:
    """Returns the versions of Python and of the libraries that compute."""
    found = {"python": ".".join(map(str, sys.version_info[:3]))}
    for name in _LIBRARIES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def _warn(line: str) -> None:
    print(f"warning: {line}", file=sys.stderr)

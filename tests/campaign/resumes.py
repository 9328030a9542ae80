"""Trains a scene's config once to its end, and again from two of its checkpoints, on the config's own engine.

A resumed run must be bitwise identical to the one that was never interrupted. The two checkpoints are in the middle of
an epoch: the earlier one while an evaluation without an improvement counts towards a reduction of the learning rate,
the later one after such a reduction.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from runner.checks.trainer import with_metrics, with_plateau_metric
from runner.config.schema import RunConfig
from runner.data import loading, workers
from runner.data.base import Array
from runner.engine import registry
from runner.engine.base import Engine, caches_split
from runner.host.signals import StopRequest
from runner.task.base import DataSpec
from runner.task.registry import make_task
from runner.training import feed, lengths, loop, stopping
from runner.training.checkpoint import resume, storage
from runner.training.checkpoint.reading import Checkpoint
from runner.training.checkpoint.saver import CheckpointSaver, take_state
from runner.training.display import Display
from runner.training.profile import Profiler
from runner.verify.request import read_arrays, read_config, write_arrays
from tests.campaign.mutations_hooks import Hooks

# Steps of the checkpoints; an epoch has three steps.
RESUMED_AT = (5, 10)
_ABOUT = {"run": "resumed", "config": {"trainer": {}}, "seed": 3, "versions": {"numpy": np.__version__}}
_CHECKPOINTS = "checkpoints"
_WHOLE = "reference.npz"
_RESUMED = "mesh.npz"


class _Run:
    """A config with its data and a built engine, which trains from any state."""

    def __init__(self, config: RunConfig) -> None:
        data = loading.load_run(config)
        task = make_task(config.task, data.specs, data.train)
        trainer = with_metrics(config.trainer, task.directions, task.step_metrics)
        optimizer = with_plateau_metric(config.optimizer, trainer, task.directions, task.step_metrics)
        self._config = replace(config, trainer=trainer, optimizer=optimizer)
        self._goal = stopping.objective(trainer.checkpoint.best, task.directions)
        total_steps = lengths.total_steps(config, data.train.size)
        self.engine: Engine = registry.make_engine(self._config, DataSpec(task.arrays, task), total_steps)
        self.engine.build()
        # Without worker processes, there is nothing to close.
        readers = workers.opened(config.dataset, config.trainer.seed)
        self._splits = feed.splits(self._config, data, task, readers, cached=caches_split(self.engine))

    def train(self, folder: Path, start: Checkpoint | None = None) -> dict[str, Array]:
        """Trains to the end.

        Args:
          folder: of the checkpoints that it saves.
          start: the checkpoint that is resumed, which the engine has loaded; None: a new run.

        Returns:
          `state/<path>`, and by step: `loss`, `rate`, `evaluated`.
        """
        rates: dict[int, float] = {}

        def log(step: int, points: Mapping[str, float]) -> None:
            if "learning_rate" in points:
                rates[step] = points["learning_rate"]

        checkpoints = self._config.trainer.checkpoint
        first = 0 if start is None else start.step
        saver = CheckpointSaver(checkpoints, folder, take_state(self.engine, _ABOUT), print, first, self._goal)
        profiler = Profiler(self._config.trainer.profile, self.engine.trace, folder)
        hooks = loop.LoopHooks(log, _ignore, _ignore, Display(), StopRequest(), saver, profiler)
        result = loop.train(self._config, self.engine, self._splits, hooks, start)
        found = {f"state/{path}": np.array(value) for path, value in self.engine.state().items()}
        found["loss"] = np.asarray([means["loss"] for _, means in result.history.train])
        found["rate"] = np.asarray([rates[step] for step in sorted(rates)])
        found["evaluated"] = np.asarray([evaluation.loss for _, evaluation in result.history.evaluations])
        return found


def _ignore(*_: object) -> Any:
    """Takes what these runs report."""


def train_whole(scene: Path) -> None:
    """Trains without an interruption, and writes checkpoints and arrays into the scene's folder."""
    run = _Run(_loaded(scene))
    write_arrays(scene / _WHOLE, run.train(scene / _CHECKPOINTS))


def train_resumed(scene: Path, folder: Path, hooks: Hooks | None = None) -> None:
    """Resumes from each of the checkpoints, and writes the arrays into a folder.

    Args:
      scene: has the checkpoints.
      folder: of the job.
      hooks: of a broken engine; they are told where a run was resumed.
    """
    run = _Run(_loaded(scene))
    found = {}
    for step in RESUMED_AT:
        if hooks is not None:
            hooks.resumed_at = step
        checkpoint = Checkpoint(storage.place(scene / _CHECKPOINTS, step))
        resume.load(run.engine, checkpoint)
        ended = run.train(folder / f"from{step}", checkpoint)
        found |= {f"from{step}/{key}": value for key, value in ended.items()}
    write_arrays(folder / _RESUMED, found)


def _loaded(scene: Path) -> RunConfig:
    config = read_config(scene)
    registry.prepare(config)
    registry.load(config)
    return config


def whole_arrays(scene: Path) -> dict[str, Array]:
    """Returns the arrays of the run that was not interrupted."""
    return read_arrays(scene / _WHOLE)


def differing(scene: Path, folder: Path) -> list[str]:
    """Returns the keys of arrays of a resumed run that differ in any bit, or are missing, those of the state last."""
    whole = whole_arrays(scene)
    found = read_arrays(folder / _RESUMED)
    wrong: dict[str, None] = {}
    for key, expected in sorted(whole.items(), key=lambda item: item[0].startswith("state/")):
        for step in RESUMED_AT:
            value = found.get(f"from{step}/{key}")
            if value is None or not np.array_equal(value, expected, equal_nan=True):
                wrong[key] = None
    return list(wrong)

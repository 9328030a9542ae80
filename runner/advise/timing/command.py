"""Measures the training step of a config and writes the median of its times."""

from __future__ import annotations

import json
import statistics
import time
from pathlib import Path

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig

from runner.config.schema import RunConfig
from runner.data import loading
from runner.engine import make_engine, registry
from runner.engine.base import Engine, PlacedBatches, cache_on_device
from runner.plan.command import compile_step, zero_batches
from runner.task.base import DataSpec
from runner.task.registry import make_task

FILE = "step.json"
# The first steps allocate memory.
_WARM_UP = 2
_FEWEST = 5
_MOST = 50
# Seconds of measuring: the median of busy virtual devices settles within that.
_SECONDS = 4.0


def run(config: RunConfig, composed: DictConfig) -> None:
    """Writes {"seconds": median time of a step}.

    Args:
      config: checked.
      composed: the same as Hydra composed it.
    """
    del composed
    folder = Path(HydraConfig.get().runtime.output_dir)
    registry.prepare(config)
    data = loading.load_run(config)
    task = make_task(config.task, data.specs, data.train, vocabulary=data.vocabulary)
    spec = DataSpec(task.arrays, task)
    engine = make_engine(config, spec, _WARM_UP + _MOST)
    engine.build()
    cache_on_device(engine, data.train)
    compile_step(engine, spec, config.dataset.batch_size, 1)
    batches = engine.place(zero_batches(engine, spec, config.dataset.batch_size, 1))
    (folder / FILE).write_text(json.dumps({"seconds": _median_seconds(engine, batches)}))


def _median_seconds(engine: Engine, batches: PlacedBatches) -> float:
    for step in range(_WARM_UP):
        engine.train_steps(batches, step).read()
    times: list[float] = []
    step = _WARM_UP
    while len(times) < _MOST and (len(times) < _FEWEST or sum(times) < _SECONDS):
        start = time.perf_counter()
        # The call may return before the devices are done; to read its metrics waits for them.
        engine.train_steps(batches, step).read()
        times.append(time.perf_counter() - start)
        step += 1
    return statistics.median(times)

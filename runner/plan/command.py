"""From a checked config to its plan, and to the files of it, for the plan command and for training runs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from hydra.core.hydra_config import HydraConfig

from runner import layout
from runner.config import search_path
from runner.config.convert import choices
from runner.config.schema import RunConfig
from runner.data import loading
from runner.data.base import ROW, WEIGHT
from runner.engine import devices, make_engine, registry
from runner.engine.base import Engine, HostBatches, cache_on_device, caches_split
from runner.host import stages
from runner.plan.base import Plan
from runner.plan.make import make_plan
from runner.task.base import DataSpec
from runner.task.registry import make_task
from runner.training import lengths


def plan_config(config: RunConfig) -> Plan:
    """Plans a run without training: builds the engine, compiles its step for one batch and reads the program.

    A mesh of any kind of device is planned on virtual devices of the CPU, so that it needs no accelerator and takes
    none of an accelerator's memory; the rates remain those of the mesh's kind.

    Args:
      config: a checked config; its canary is skipped.

    Raises:
      ConfigError: the layout does not fit the model, or the dataset has no such split.
      DataError: the dataset is not there and can't be fetched.
    """
    where = devices.planned(config)  # asked first: the engine hides GPUs from this process
    registry.prepare(on_cpu(config))
    data = loading.load_run(config)
    lengths.total_steps(config, data.train.size)  # what a run would refuse has no plan
    task = make_task(config.task, data.specs, data.train, vocabulary=data.vocabulary)
    spec = DataSpec(task.arrays, task)
    engine = make_engine(on_cpu(config), spec, 1, planning=True)
    engine.build()
    cache_on_device(engine, data.train)
    compile_step(engine, spec, config.dataset.batch_size, 1)
    plan = plan_engine(config, engine, spec)
    return replace(plan, rates=replace(plan.rates, note=f"{plan.rates.note}; {where}")) if where else plan


def on_cpu(config: RunConfig) -> RunConfig:
    """Returns the config with its mesh on virtual CPU devices."""
    return replace(config, mesh=replace(config.mesh, device="cpu"))


def compile_step(engine: Engine, data: DataSpec, batch_size: int, capacity: int) -> None:
    """Compiles an engine's step for batches of zeros.

    Args:
      engine: built.
      data: what it is built for.
      batch_size: global.
      capacity: batches of one device call.
    """
    shape = (capacity, batch_size)
    weights = np.zeros(shape, np.float32)
    if caches_split(engine):
        arrays = {ROW: np.zeros(shape, np.int32)}
    else:
        arrays = {name: np.zeros((*shape, *spec.shape), spec.dtype) for name, spec in data.arrays.items()}
    with stages.stage("compiling the step"):
        engine.compile(engine.place(HostBatches({**arrays, WEIGHT: weights}, weights, capacity)))


def plan_engine(config: RunConfig, engine: Engine, data: DataSpec) -> Plan:
    """Returns the plan of an engine whose step is compiled, named after Hydra's choices.

    Args:
      config: a checked config.
      engine: built and compiled.
      data: what it is built for.
    """
    chosen = choices()
    overrides = list(HydraConfig.get().overrides.task)
    places = layout.origins(chosen["layout"], overrides, search_path.folders(), len(config.layout.rules))
    return make_plan(config, engine, data, chosen, places)

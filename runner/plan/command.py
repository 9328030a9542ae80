"""The plan of a checked config, for training runs and for `python -m runner.plan`, which writes and prints it."""

from __future__ import annotations

import json
import logging
import os
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf

from runner.cluster.exiting import at_exit
from runner.config.convert import resolved
from runner.config.invocation import choices
from runner.config.schema import AUTO, HardwareConfig, PlanConfig, RunConfig
from runner.data import loading
from runner.data.base import ROW, WEIGHT
from runner.engine import devices, lengths, make_engine, registry
from runner.engine.base import HostBatches
from runner.engine.common import Engine
from runner.engine.devices import has_compiler
from runner.host import stages
from runner.host.outputs import quiet_native_log, required
from runner.plan import rates
from runner.plan.base import ARITHMETIC, TARGET, Plan
from runner.plan.files import write_files
from runner.plan.make import make_plan
from runner.plan.table import plan_console, show
from runner.task.base import DataSpec
from runner.task.registry import make_task


def run(config: RunConfig, composed: DictConfig) -> None:
    """Writes and prints the plan."""
    folder = Path(HydraConfig.get().runtime.output_dir)
    console = plan_console()
    for line in devices.device_lines(config, composed):
        console.print(line, soft_wrap=True, markup=False)
    with quiet_native_log(folder / "runner.log"):
        plan = plan_config(config)
    with required(folder):
        content = OmegaConf.to_yaml(OmegaConf.create(resolved(composed, config.mesh, config.tracking.uri)))
        (folder / "config.yaml").write_text(content)
        # What the table of a multirun shows.
        summary = {name.replace("/", "_"): value for name, value in plan.metrics().items()}
        (folder / "summary.json").write_text(json.dumps(summary) + "\n")
    files = write_files(plan, folder)
    show(plan, console)
    names = ", ".join(path.name for path in files)
    console.print(f"written: {names} in {folder}", soft_wrap=True, markup=False)
    if "tensorflow" in sys.modules:
        at_exit(_leave)


def _leave(code: int) -> None:
    """Exits without tearing TensorFlow down, which would take most of a second."""
    logging.shutdown()  # `os._exit` runs no exit handlers
    os._exit(code)


def plan_config(config: RunConfig) -> Plan:
    """Plans a run without training: builds its engine on virtual CPU devices, and compiles one step if it counts
    costs.

    So a plan needs no accelerator and takes none of its memory; the rates are still those of the mesh's own devices. A
    plan for hardware that is not here is made by arithmetic, or with that hardware's own compiler.

    Raises:
      ConfigError: the layout does not fit the model, or the dataset has no such split.
      DataError: the dataset does not exist and can't be downloaded.
    """
    is_here = config.hardware.is_here
    device_note = ""
    if is_here:
        # Which device the run would use has to be asked before the engine hides GPUs from this process.
        device_note = devices.planning_note(config.mesh, config.hardware, config.cluster)
        built = replace(config, mesh=replace(config.mesh, device="cpu"))
    else:
        built = config = replace(config, plan=settled(config.plan, config.hardware))
    registry.prepare(built)
    data = loading.load(config.dataset, config.trainer.seed, task=config.task)
    task = make_task(config.task, data.specs, data.train, vocabulary=data.vocabulary)
    total_steps = 0
    # A length that a run rejects is rejected here too. A batch for a large mesh elsewhere may be larger than the data
    # here, which only gives the shapes.
    if is_here or config.dataset.batch_size <= data.train.size:
        total_steps = lengths.run_length(config, data.train.size, task.tokens).total
    spec = DataSpec(task.arrays, task)
    if is_here:
        built = replace(built, dataset=lengths.without_padding(config.dataset, config.trainer, data.train.size))
    engine = make_engine(built, spec, 1, planning=True)
    engine.build()
    compiles = config.plan.compiler == TARGET
    if is_here:
        engine.cache_on_device(data.train)
        compiles = engine.counts_cost
    if compiles:
        compile_step(engine, spec, config.dataset.batch_size, 1)
    plan = make_plan(config, engine, spec, choices(), total_steps)
    borrowed = rates.borrowed(config.hardware, choices()["hardware"])
    plan = replace(plan, warnings=(*borrowed, *plan.warnings))
    if device_note:
        noted = replace(plan.rates, note=f"{plan.rates.note}; {device_note}")
        plan = replace(plan, rates=noted)
    return plan


def settled(plan: PlanConfig, hardware: HardwareConfig) -> PlanConfig:
    """Returns the group with `compiler=auto` settled for hardware that is not here."""
    if plan.compiler != AUTO:
        return plan
    if hardware.target is not None and has_compiler(hardware.kind or ""):
        return replace(plan, compiler=TARGET)
    return replace(plan, compiler=ARITHMETIC)


def compile_step(engine: Engine, data: DataSpec, batch_size: int, capacity: int) -> None:
    """Compiles an engine's step for batches of zeros."""
    weights = np.zeros((capacity, batch_size), np.float32)
    arrays = {}
    if engine.caches:
        # The batches of a split on the devices are numbers of its rows.
        arrays[ROW] = np.zeros((capacity, batch_size), np.int32)
    else:
        for name, spec in data.arrays.items():
            arrays[name] = np.zeros((capacity, batch_size, *spec.shape), spec.dtype)
    with stages.stage("compiling the step"):
        engine.compile(engine.place(HostBatches({**arrays, WEIGHT: weights}, weights, capacity)))

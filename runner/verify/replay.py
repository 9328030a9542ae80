"""Recorded steps: `runner.verify run=<run id> step=<step>` computes one again and compares it with the record."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from omegaconf import DictConfig

from runner.checkpoint.resume import (
    Previous,
    check_data,
    check_examples,
)
from runner.cluster.team import current
from runner.config.convert import resolved
from runner.config.schema import RunConfig
from runner.engine import devices, lengths, registry
from runner.errors import EngineError, invalid
from runner.host.console import Console
from runner.host.late import late
from runner.host.signals import StopRequest, heard
from runner.plan.checks.trainer import (
    with_metrics,
    with_plateau_metric,
)
from runner.task.registry import make_task
from runner.train.record import with_config
from runner.train.saved import open_saved
from runner.verify import recorded_step as steps

if TYPE_CHECKING:
    from runner.data import loading
    from runner.verify import parting, recompute
else:
    loading = late("runner.data.loading")
    parting = late("runner.verify.parting")
    recompute = late("runner.verify.recompute")


def run(config: RunConfig, composed: DictConfig) -> None:
    """Computes a step of a recorded run again, or finds where it parts from another run.

    Raises:
      ConfigError: there is no such run or step, or the config has other examples, data or variables than the run.
      EngineError: the step differs from the record although nothing else does; or as in training.
      DataError, Interrupted: as in training.
    """
    console = Console()
    team = current()
    saved = open_saved(config, "runner.verify")
    if config.replay.against is not None:
        for line in parting.lines(config.replay.against, config.trainer.checkpoint, saved.run):
            console.print_lines([line])
        return
    recorded = steps.recorded_step(saved.run, config.replay)
    # Before the data and the engine are loaded: the configs alone tell whether the examples have another order.
    check_examples(saved.checkpoint, resolved(config, composed), order_only=True)
    device_lines = devices.device_lines(config, composed)
    content = resolved(config, composed)
    folder = with_config(content)
    differences = steps.config_differences(recorded.about["config"], content)
    differences |= steps.version_differences(recorded.about)
    with heard() as stop:
        registry.prepare(config)
        result = _recomputed(config, saved, recorded, folder, stop)
    # All processes compute the step on their part of the mesh. Process 0 compares and reports.
    if not team.is_first:
        return
    comparison = steps.compare(recorded, result)
    printed = [*device_lines, *steps.lines(recorded, result, comparison, differences)]
    path = steps.write(folder, recorded, result, comparison, differences)
    printed.append(f"written: {path}")
    console.print_lines(printed)
    # Another config or another version of a library explains a difference, so only a step without one fails.
    if not comparison.is_equal and not differences:
        raise EngineError(
            f"step={recorded.step}: differs from the record with the recorded config and libraries; {folder} "
            "has the details"
        )


def _recomputed(
    config: RunConfig, saved: Previous, recorded: steps.RecordedStep, folder: Path, stop: StopRequest
) -> steps.Recomputed:
    """Loads the run's data and task, and computes the step."""
    data = loading.load(config.dataset, config.trainer.seed, saved.encoding, config.task)
    current().agree("the data's SHA-256", data.digest)
    check_data(saved.checkpoint, data.digest)
    task = make_task(config.task, data.specs, data.train, saved.constants, data.vocabulary)
    trainer = with_metrics(config.trainer, task.directions, task.step_metrics)
    optimizer = with_plateau_metric(config.optimizer, trainer, task.directions, task.step_metrics)
    config = replace(config, trainer=trainer, optimizer=optimizer)
    length = lengths.run_length(config, data.train.size, task.tokens)
    if recorded.step > length.total:
        raise invalid(
            "step",
            recorded.step,
            problem=f"the run has {length.total:,} steps",
            fix=f"set step={length.total} or less",
        )
    return recompute.recompute(config, data, task, length, recorded, folder, stop)

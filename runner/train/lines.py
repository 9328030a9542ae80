"""Lines that a run prints: its config, its length, which examples it uses for what, and how to continue it."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

from runner.checkpoint import runs
from runner.checkpoint.arguments import folder_of
from runner.checkpoint.places import Place
from runner.config.schema import ClusterConfig, OptimizerConfig
from runner.config.schema_data import DatasetConfig
from runner.config.schema_trainer import TrainerConfig
from runner.data.base import Dataset
from runner.engine.lengths import RunLength
from runner.engine.optim import schedules
from runner.errors import ConfigError
from runner.host.paths import shown
from runner.train import feed


def config_line(overrides: Sequence[str], folder: Path) -> str:
    """Returns the overrides that a config was composed with, and where all of it is."""
    description = ", ".join([override.lstrip("+") for override in overrides] + ["else the defaults"])
    return f"config: {description} ({shown(folder / 'config.yaml')})"


def optimizer_line(config: OptimizerConfig) -> str:
    """Returns the line that names the optimizer and its learning rate; the default rate depends on the model."""
    line = f"optimizer: {config.class_name or config.name}, learning rate {config.learning_rate:g}"
    schedule = schedules.description(config)
    if schedule:
        line += f", {schedule}"
    if config.schedule.plateau.metric is not None:
        line += f", reduced at plateaus of {config.schedule.plateau.metric}"
    return line


def data_lines(
    trainer: TrainerConfig, dataset: DatasetConfig, splits: feed.Splits, data: Dataset, length: RunLength
) -> list[str]:
    """Returns lines on the length of a run, the training examples that an epoch leaves out, and the use of splits."""
    lines: list[str] = []
    if length.key != "epochs":
        steps = f"{length.total:,} steps"
        if length.key == "tokens":
            steps += f" of {length.tokens:,} tokens"
        lines.append(f"trains for {steps}; an epoch has {length.epoch:,} steps")
    size = splits.train.size
    left_out = size % dataset.batch_size
    # Such an epoch leaves out more than its last batch, which is what was asked for.
    ends_early = trainer.steps_per_epoch or trainer.limit_train_batches or length.total < length.epoch
    if trainer.overfit_batches is not None:
        lines.append(
            f"trains on the same {splits.selecting.size:,} examples in every epoch, and evaluates on these "
            "(trainer.overfit_batches)"
        )
    elif left_out and dataset.remainder == "drop" and not ends_early:
        lines.append(f"each epoch leaves out {left_out} of {size:,} examples (dataset.remainder=pad counts them)")
    selected: list[str] = []
    if trainer.checkpoint.enabled and trainer.checkpoint.best is not None:
        selected.append(f"the best checkpoint by {trainer.checkpoint.best}")
    if trainer.early_stopping.metric is not None:
        selected.append(f"the end of the run by {trainer.early_stopping.metric}")
    use = f"selects {' and '.join(selected)}" if selected else "is evaluated during training"
    split = splits.selecting_name
    description = data.selection.get(split, split)
    if description != split:
        split = f"{split} ({description})"
    line = f"{split}, {splits.selecting.size:,} examples, {use}"
    if splits.test is not None:
        line = f"{line}; test, {splits.test.size:,} examples, is evaluated once at the end"
    lines.append(line)
    return lines


def continuing_line(folder: Place, cluster: ClusterConfig, name: str | None = None) -> str:
    """Returns the line with the command that continues a run; empty where the run left no checkpoint.

    Whatever started its processes (`cluster`) has to start them again. `name` is the run's, with `resume=auto`.
    """
    if name is not None:
        return f"To continue, start the same command again (resume=auto name={name})"
    default_folder = folder_of(None)  # where `resume` searches for an id
    try:
        run_id = runs.find("resume", str(folder), default_folder)[0].id
    except (ConfigError, OSError):
        return ""
    reference = run_id
    if folder.parent != default_folder:
        reference = shown(folder)
    command = f"python -m runner {shlex.quote(f'resume={reference}')}"
    if cluster.name in ("auto", "explicit"):
        return f"To continue, start all processes as before: {command}"
    return f"To continue: {command}"

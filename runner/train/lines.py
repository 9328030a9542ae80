"""Lines that a run prints before it trains: its optimizer, its length, and which examples it uses for what."""

from __future__ import annotations

from runner.config.schema import OptimizerConfig, RunConfig
from runner.config.schema_data import DatasetConfig
from runner.config.schema_trainer import TrainerConfig
from runner.data.base import Dataset
from runner.engine.lengths import RunLength
from runner.engine.optim import schedules
from runner.train import feed


def optimizer_line(config: OptimizerConfig) -> str:
    """Returns the line that names the optimizer and its learning rate; the default rate depends on the model."""
    line = f"optimizer: {config.name}, learning rate {config.learning_rate:g}"
    schedule = schedules.description(config)
    if schedule:
        line += f", {schedule}"
    if config.schedule.plateau.metric is not None:
        line += f", reduced at plateaus of {config.schedule.plateau.metric}"
    return line


def length_line(length: RunLength) -> str:
    """Returns how many epochs a run is that is measured in steps or tokens; empty where it is set in epochs."""
    if length.key == "epochs":
        return ""
    line = f"trains for {length.total:,} steps"
    if length.key == "tokens":
        line += f" of {length.tokens:,} tokens"
    return f"{line}; an epoch has {length.epoch:,} steps"


def examples_line(config: RunConfig, splits: feed.Splits, length: RunLength) -> str:
    """Returns which training examples an epoch leaves out; empty where it has all, or does not come to its end."""
    trainer = config.trainer
    size = splits.train.size
    if trainer.overfit_batches is not None:
        return (
            f"trains on the same {splits.selecting.size:,} examples in every epoch, and evaluates on these "
            "(trainer.overfit_batches)"
        )
    left_out = size % config.dataset.batch_size
    # Such an epoch leaves out more than its last batch, which is what was asked for.
    ends_early = trainer.steps_per_epoch or trainer.limit_train_batches or length.total < length.epoch
    if left_out and config.dataset.remainder == "drop" and not ends_early:
        return f"each epoch leaves out {left_out} of {size:,} examples (dataset.remainder=pad counts them)"
    return ""


def packing_line(config: DatasetConfig, data: Dataset) -> str:
    """Returns how full the packed rows of train are; empty without sequence packing."""
    if not config.pack:
        return ""
    return f"packed rows: {data.selection['train']}"


def selection_line(config: TrainerConfig, splits: feed.Splits, data: Dataset) -> str:
    """Returns which split selects the best checkpoint or the end of the run; empty where nothing is selected."""
    trainer = config
    selected = []
    if trainer.checkpoint.enabled and trainer.checkpoint.best is not None:
        selected.append(f"the best checkpoint by {trainer.checkpoint.best}")
    if trainer.early_stopping.metric is not None:
        selected.append(f"the end of the run by {trainer.early_stopping.metric}")
    if not selected:
        return ""
    split = splits.selecting_name
    description = data.selection.get(split, split)
    if description != split:
        split = f"{split} ({description})"
    line = f"{split}, {splits.selecting.size:,} examples, selects {' and '.join(selected)}"
    if splits.test is not None:
        line = f"{line}; test, {splits.test.size:,} examples, is evaluated once at the end"
    return line

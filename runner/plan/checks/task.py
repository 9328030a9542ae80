"""Checks between task, dataset and model that need the config only; see `runner.plan.checks.run`."""

from __future__ import annotations

from runner.config.options import output_tasks
from runner.config.schema import RunConfig
from runner.config.schema_data import DatasetConfig
from runner.config.schema_task import TaskConfig
from runner.data import registry
from runner.engine import registry as engines
from runner.errors import ConfigError, invalid
from runner.model import gpt_options
from runner.task import registry as tasks
from runner.task.losses import OF_EVERY_ENGINE


def check(config: RunConfig) -> None:
    """Checks that dataset and model have the targets and outputs of the task.

    Raises:
      ConfigError: they don't fit.
    """
    dataset = config.dataset
    task = config.task
    entry = tasks.entry(task)
    if any(each.labels_positions for each in tasks.entries(task)):
        _check_masks(dataset, task)
    _check_microbatches(task, config.trainer.accumulate_steps)
    _check_rows(task, config.trainer.accumulate_steps)
    _check_of_keras(task, config.engine.name)
    is_text = registry.is_text(dataset)
    if is_text and entry.predicts == "example":
        raise invalid(
            "task",
            task.name,
            problem=f"needs one target per example, but dataset={dataset.name} has one per token",
            fix="set task=language_model",
        )
    if config.model.target == gpt_options.TARGET and entry.predicts == "example":
        fix = "set task=language_model"
        if not is_text:
            fix += " and dataset=text or dataset=pydoc"
        raise invalid(
            "task", task.name, problem="needs one output per example, but model=gpt has logits per token", fix=fix
        )
    if entry.predicts != "token":
        return
    may_have_tokens = registry.entry(dataset).tokens == "maybe"
    if not is_text and not may_have_tokens:
        raise _no_tokens(dataset, task)


def _check_masks(dataset: DatasetConfig, task: TaskConfig) -> None:
    """Checks that the source does not resize, which would blend the class numbers of a mask."""
    if dataset.image_size is not None:
        height, width = dataset.image_size
        raise invalid(
            "dataset.image_size",
            dataset.image_size,
            problem=f"blends pixels, but task={task.name} needs the class numbers of its masks as they are",
            fix=f"set dataset.augment=[{{name: resize, size: [{height}, {width}]}}] on images and masks of one size",
        )


def _check_of_keras(task: TaskConfig, engine: str) -> None:
    """Checks that an engine without Keras 3 has the losses and metrics of the task."""
    if engines.ENGINES[engine].full:
        return
    for own in (output_tasks(task) or {"": task}).values():
        for key, given in (("metrics", own.options.get("metrics")), ("loss", own.options.get("loss"))):
            if given and not (key == "loss" and given in OF_EVERY_ENGINE):
                raise invalid(
                    f"task.{key}",
                    given,
                    problem=f"is Keras 3's, which engine={engine} does not have",
                    fix=f"set engine=jax, or remove task.{key}",
                )


def _check_microbatches(task: TaskConfig, microbatches: int) -> None:
    """Checks that a step is not split if the share of an example depends on the labels of the whole step."""
    if microbatches == 1:
        return
    for output, output_task in output_tasks(task).items():
        for option in tasks.entry(output_task).counting_options:
            value = output_task.options[option]
            if value is not None:
                raise invalid(
                    "trainer.accumulate_steps",
                    microbatches,
                    problem=f"must be 1 with task.outputs.{output}.{option}={value}, by which the labels of a whole "
                    "step are counted",
                    fix=f"remove trainer.accumulate_steps, or set task.outputs.{output}.{option}=null",
                )


def _check_rows(task: TaskConfig, microbatches: int) -> None:
    """Checks that a loss that compares the rows of a batch gets the whole batch."""
    if not tasks.compares_rows(task):
        return
    subject = f"task={task.name}"
    if microbatches > 1:
        raise invalid(
            "trainer.accumulate_steps",
            microbatches,
            problem=f"must be 1 with {subject}, whose loss compares all rows of a batch: those of a microbatch are "
            "fewer, which is another loss",
            fix="remove it, and use more devices or a smaller dataset.batch_size",
        )


def _no_tokens(dataset: DatasetConfig, task: TaskConfig) -> ConfigError:
    """Returns the error for a language model on a dataset without tokens."""
    return invalid(
        "task",
        task.name,
        problem=f"needs sequences of tokens, but dataset={dataset.name} has none",
        fix="set dataset=text or dataset=pydoc",
    )

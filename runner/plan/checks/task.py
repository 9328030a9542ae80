"""Checks between task, dataset and model that need the config only; see `runner.plan.checks.run`."""

from __future__ import annotations

from runner.config.options import output_tasks
from runner.config.schema import RunConfig
from runner.config.schema_data import DatasetConfig
from runner.config.schema_task import TaskConfig
from runner.data import registry
from runner.engine import registry as engines
from runner.errors import invalid
from runner.model import gpt_options
from runner.task import registry as tasks
from runner.task.losses import OF_EVERY_ENGINE


def check(config: RunConfig) -> None:
    """Checks that dataset and model have the targets and outputs of the task; a ConfigError if they don't fit."""
    dataset = config.dataset
    task = config.task
    predicts = tasks.entry(task).predicts
    if any(each.labels_positions for each in tasks.entries(task)):
        _check_masks(dataset, task)
    _check_microbatches(task, config.trainer.accumulate_steps)
    _check_of_keras(task, config.engine.name)
    is_text = registry.is_text(dataset)
    problem = ""
    fix = "set task=language_model"
    if is_text and predicts == "example":
        problem = f"needs one target per example, but dataset={dataset.name} has one per token"
    elif config.model.target == gpt_options.TARGET and predicts == "example":
        problem = "needs one output per example, but model=gpt has logits per token"
        fix = "set task=language_model and dataset=text or dataset=pydoc"
    elif predicts == "token" and not is_text and registry.entry(dataset).tokens != "maybe":
        problem = f"needs sequences of tokens, but dataset={dataset.name} has none"
        fix = "set dataset=text or dataset=pydoc"
    if problem:
        raise invalid("task", task.name, problem=problem, fix=fix)


def _check_masks(dataset: DatasetConfig, task: TaskConfig) -> None:
    """Checks that the source does not resize, which would blend the class numbers of a mask."""
    size = dataset.image_size
    if size is not None:
        problem = f"blends pixels, but task={task.name} needs the class numbers of its masks as they are"
        resize = f"{{name: resize, size: [{size[0]}, {size[1]}]}}"
        fix = f"set dataset.augment=[{resize}] on images and masks of one size"
        raise invalid("dataset.image_size", size, problem=problem, fix=fix)


def _check_of_keras(task: TaskConfig, engine: str) -> None:
    """Checks that an engine without Keras 3 has the losses and metrics of the task."""
    if engines.ENGINES[engine].full:
        return
    for own in (output_tasks(task) or {"": task}).values():
        for key in ("metrics", "loss"):
            given = own.options.get(key)
            if given and not (key == "loss" and given in OF_EVERY_ENGINE):
                problem = f"is Keras 3's, which engine={engine} does not have"
                raise invalid(f"task.{key}", given, problem=problem, fix=f"set engine=jax, or remove task.{key}")


def _check_microbatches(task: TaskConfig, microbatches: int) -> None:
    """Checks that a step is not split if an example's share of the loss depends on the others of the step."""
    if microbatches == 1:
        return
    key = "trainer.accumulate_steps"
    for output, output_task in output_tasks(task).items():
        for option in tasks.entry(output_task).counting_options:
            value = output_task.options[option]
            if value is not None:
                name = f"task.outputs.{output}.{option}"
                problem = f"must be 1 with {name}={value}, by which the labels of a whole step are counted"
                raise invalid(key, microbatches, problem=problem, fix=f"remove {key}, or set {name}=null")
    if tasks.compares_rows(task):
        problem = f"must be 1 with task={task.name}, whose loss compares all rows of a batch: those of a microbatch "
        problem += "are fewer, which is another loss"
        fix = "remove it, and use more devices or a smaller dataset.batch_size"
        raise invalid(key, microbatches, problem=problem, fix=fix)
